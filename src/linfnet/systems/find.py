"""Systems by name: the files of this folder, each imported when it is asked for."""

import dataclasses
import importlib
import pkgutil
from pathlib import Path

import torch

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn.classifier import Classifier, read_config
from linfnet.nn.model_path import find_model
from linfnet.recipes import Recipe, options_from_mapping
from linfnet.systems.system import System

# Files of this folder that are no systems.
_FRAME = ("convnets", "find", "linear_bounds", "system")


def system_names() -> tuple[str, ...]:
    """The systems there are.

    >>> "linf" in system_names()
    True
    """
    package = importlib.import_module("linfnet.systems")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name not in _FRAME))


def find_system(name: str) -> type[System]:
    """The class of a system; only files of this folder are ever imported, whatever a recipe or config says."""
    if name not in system_names():
        raise LinfnetError(f"unknown system {name!r}; known are {', '.join(system_names())}")
    kind: type[System] = importlib.import_module(f"linfnet.systems.{name}").SYSTEM
    return kind


def system_of(recipe: Recipe) -> System:
    """The system of a recipe with the keys of its [system], types and ranges checked."""
    own = {key: value for key, value in recipe.system.items() if key != "name"}
    return options_from_mapping(find_system(recipe.system_name), own, "system")


def looks_at(recipe: Recipe, key: str) -> bool:
    """Whether a recipe's system makes something of a key."""
    unused = find_system(recipe.system_name).unused
    return key not in unused and key.split(".")[0] not in unused


def check_changes(before: Recipe, after: Recipe) -> None:
    """Refuse changes of a recipe that its system would not look at."""
    for section in dataclasses.fields(Recipe):
        old, new = getattr(before, section.name), getattr(after, section.name)
        if old == new or not dataclasses.is_dataclass(new):
            continue
        for field in dataclasses.fields(new):
            key, value = f"{section.name}.{field.name}", getattr(new, field.name)
            if not looks_at(after, key) and getattr(old, field.name, None) != value:
                raise ArgumentError(f"{key} is {value}, but the system {after.system_name!r} does not look at it")


def load_model(folder: Path | str, *, device: torch.device | str = "cpu") -> Classifier:
    """The net of any system that a run or `save` wrote, in eval mode at p = inf; nothing is unpickled.

    The folder may also be the name of a model in the package, or `hf://user/name`.
    """
    path = find_model(folder)
    return find_system(str(read_config(path).get("system", "linf"))).net_type.load(path, device=device)
