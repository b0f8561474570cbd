"""l-infinity distance nets: classifiers that are 1-Lipschitz by construction and are certified by one forward pass.

The names below are imported from their modules on first use, so that `import linfnet` does not import torch: the command
line sets the wait policy of the threads before torch starts them.
"""

import importlib
from typing import TYPE_CHECKING

from linfnet.version import __version__

if TYPE_CHECKING:
    from linfnet.attacks import ATTACKS, pgd
    from linfnet.certificates import (
        Certificate,
        Certification,
        MarginCertificate,
        certificates_of,
        certified_by_interval,
        certify_by_margin,
        certify_images,
    )
    from linfnet.data import load
    from linfnet.epsilon import parse_epsilon
    from linfnet.evaluation import evaluate
    from linfnet.nn import Classifier, LinfNet, LpDistance, LpDistanceConv2d
    from linfnet.ops import linf_distance_bounds, lp_distance
    from linfnet.systems import load_model

# The module of each name of __all__; tests/test_package.py compares it with the imports above.
_MODULES = {
    "ATTACKS": "attacks",
    "Certificate": "certificates",
    "Certification": "certificates",
    "Classifier": "nn",
    "LinfNet": "nn",
    "LpDistance": "nn",
    "LpDistanceConv2d": "nn",
    "MarginCertificate": "certificates",
    "certificates_of": "certificates",
    "certified_by_interval": "certificates",
    "certify_by_margin": "certificates",
    "certify_images": "certificates",
    "evaluate": "evaluation",
    "linf_distance_bounds": "ops",
    "load": "data",
    "load_model": "systems",
    "lp_distance": "ops",
    "parse_epsilon": "epsilon",
    "pgd": "attacks",
}

__all__ = [
    "ATTACKS",
    "Certificate",
    "Certification",
    "Classifier",
    "LinfNet",
    "LpDistance",
    "LpDistanceConv2d",
    "MarginCertificate",
    "__version__",
    "certificates_of",
    "certified_by_interval",
    "certify_by_margin",
    "certify_images",
    "evaluate",
    "linf_distance_bounds",
    "load",
    "load_model",
    "lp_distance",
    "parse_epsilon",
    "pgd",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'linfnet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"linfnet.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
