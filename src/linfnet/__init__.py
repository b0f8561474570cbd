"""l-infinity distance nets: classifiers that are 1-Lipschitz by construction and are certified by one forward pass.

The names and modules below are imported on first use, so that `import linfnet` does not import torch: the command line
sets the wait policy of the threads before torch starts them.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from linfnet.version import __version__

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from linfnet import attacks as attacks, bounds as bounds, boxes as boxes, certificates as certificates
    from linfnet import comparison as comparison, compression as compression, data as data, distributed as distributed
    from linfnet import epsilon as epsilon, errors as errors, evaluation as evaluation, export as export
    from linfnet import figures as figures, files as files, inputs as inputs, losses as losses, nn as nn, ops as ops
    from linfnet import plugins as plugins, recipes as recipes, registry as registry, report as report
    from linfnet import reproduce as reproduce, results as results, schedules as schedules, search as search
    from linfnet import serve as serve, systems as systems, theory as theory, train as train
    from linfnet import verification as verification, version as version
    # fmt: on
    # isort: on
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


def _submodules() -> set[str]:
    return {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        globals()[name] = getattr(importlib.import_module(f"linfnet.{_MODULES[name]}"), name)
        return globals()[name]
    if name in _submodules():
        return importlib.import_module(f"linfnet.{name}")
    raise AttributeError(f"module 'linfnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_submodules()})
