"""l-infinity distance nets: classifiers that are 1-Lipschitz by construction and are certified by one forward pass.

The names below are imported from their modules on first use, so that `import linfnet` does not import torch: the
command line sets the wait policy of the threads before torch starts them.
"""

import importlib
from typing import TYPE_CHECKING

from linfnet.version import __version__

if TYPE_CHECKING:
    from linfnet.attacks import ATTACKS, Attacked, attack
    from linfnet.certificates import Certified, Decided, ExactRadii, certify, exact_radius
    from linfnet.compression import Compressed, compress
    from linfnet.data import ImageSet, load
    from linfnet.epsilon import parse_epsilon
    from linfnet.errors import ArgumentError, LinfnetError
    from linfnet.evaluation import Evaluation, evaluate
    from linfnet.losses import LOSSES
    from linfnet.nn import (
        Classifier,
        LinfNet,
        LpDistance,
        LpDistanceConv2d,
        MeanShift,
        ModelInfo,
        SparseNet,
        list_models,
    )
    from linfnet.ops import linf_distance_bounds, lp_distance
    from linfnet.systems import SYSTEMS, load_model
    from linfnet.train import Callback, Fitted, fit

# The module of each name of __all__; tests/test_package.py compares it with the imports above.
_MODULES = {
    "ATTACKS": "attacks",
    "ArgumentError": "errors",
    "Attacked": "attacks",
    "Callback": "train",
    "Certified": "certificates",
    "Classifier": "nn",
    "Compressed": "compression",
    "Decided": "certificates",
    "Evaluation": "evaluation",
    "ExactRadii": "certificates",
    "Fitted": "train",
    "ImageSet": "data",
    "LOSSES": "losses",
    "LinfNet": "nn",
    "LinfnetError": "errors",
    "LpDistance": "nn",
    "LpDistanceConv2d": "nn",
    "MeanShift": "nn",
    "ModelInfo": "nn",
    "SYSTEMS": "systems",
    "SparseNet": "nn",
    "attack": "attacks",
    "certify": "certificates",
    "compress": "compression",
    "evaluate": "evaluation",
    "exact_radius": "certificates",
    "fit": "train",
    "linf_distance_bounds": "ops",
    "list_models": "nn",
    "load": "data",
    "load_model": "systems",
    "lp_distance": "ops",
    "parse_epsilon": "epsilon",
}

__all__ = [
    "ATTACKS",
    "LOSSES",
    "SYSTEMS",
    "ArgumentError",
    "Attacked",
    "Callback",
    "Certified",
    "Classifier",
    "Compressed",
    "Decided",
    "Evaluation",
    "ExactRadii",
    "Fitted",
    "ImageSet",
    "LinfNet",
    "LinfnetError",
    "LpDistance",
    "LpDistanceConv2d",
    "MeanShift",
    "ModelInfo",
    "SparseNet",
    "__version__",
    "attack",
    "certify",
    "compress",
    "evaluate",
    "exact_radius",
    "fit",
    "linf_distance_bounds",
    "list_models",
    "load",
    "load_model",
    "lp_distance",
    "parse_epsilon",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'linfnet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"linfnet.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
