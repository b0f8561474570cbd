"""The models of the package: what is known and what was measured, without loading their weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.files import read_table
from linfnet.nn.model_path import PRETRAINED, pretrained_names, system_name

# The key of config.json with the measured figures of a packaged model; `tools/zoo.py` writes them.
MEASURED = "measured"


@dataclass(frozen=True)
class ModelInfo:
    """What is known about a model of the package. Accuracies are shares from 0 to 1 of all test images of its data."""

    name: str
    system: str
    """The name of its system, such as `linf`, or `sparse` for a compressed net."""
    data: str
    """The data set on which it was trained."""
    eps: tuple[Fraction, ...]
    """The epsilons for which it was trained; the attacks and the certificates were measured at the first."""
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    clean: float
    """Accuracy on unperturbed images."""
    pgd: float
    """Accuracy under PGD with 100 steps."""
    smoothed: float | None
    """Accuracy under smoothed PGD, the attack `smoothed`; None if it was not measured."""
    certified: float
    """Certified accuracy, by the best certificate of the net."""
    milliseconds: float
    """The time of a forward pass of one image on one core of `processor`."""
    processor: str
    size: int
    """Bytes of model.safetensors."""
    sha256: str
    """SHA-256 of model.safetensors."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON; epsilons as text."""
        return {**vars(self), "eps": list(map(format_epsilon, self.eps))}


def packaged_info(name: str) -> ModelInfo:
    """Return what is known about a model of the package, from its config.json."""
    config: Mapping[str, Any] = read_table(PRETRAINED / name / "config.json")
    return ModelInfo(
        name=name,
        system=system_name(config),
        data=config["data"],
        eps=tuple(map(parse_epsilon, config["eps"])),
        image_shape=tuple(config["image_shape"]),
        class_names=tuple(config["class_names"]),
        **config[MEASURED],
    )


def list_models() -> dict[str, ModelInfo]:
    """Return the models of the package: for each name that `load_model` accepts, what is known about the model.

    >>> info = list_models()["mnist-small"]
    >>> info.data, info.clean
    ('mnist', 0.9741)
    """
    return {name: packaged_info(name) for name in pretrained_names()}
