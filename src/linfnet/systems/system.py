"""The interface of a system, the table of all systems, and functions that select the system of a recipe or model.

A system builds the net of a recipe and defines the loss of a training step. The net defines how it is certified.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from linfnet.certificates.product_net import ProductNet
from linfnet.data import SetInfo
from linfnet.distributed.device import choose_device
from linfnet.epsilon import parse_epsilons
from linfnet.errors import ArgumentError, LinfnetError, check_numbers, nearest
from linfnet.files import read_table
from linfnet.nn import ProvenNet
from linfnet.nn.classifier import Classifier, no_certificate
from linfnet.nn.model_folder import arguments_of
from linfnet.nn.model_path import find_model, pretrained_names, system_name
from linfnet.recipes import Recipe, options_from_mapping
from linfnet.registry import Registry
from linfnet.schedules import StepState

# For `System.unused`: keys that have no effect without distance layers, or in a system that defines its own loss.
RELAXATION = (
    "model",
    "schedule.p_start",
    "schedule.p_end",
    "schedule.slopes_p",
    "schedule.slopes_p_end",
    "schedule.snap_p",
)
OBJECTIVE = ("loss", "optimizer.scale_lr_factor")


@dataclass(frozen=True)
class System(ABC):
    """Base class of systems: frozen dataclasses, registered by `@SYSTEMS.register(name)`.

    Their fields are the keys of a recipe's [system].
    """

    net_type: ClassVar[type[Classifier]]
    unused: ClassVar[tuple[str, ...]] = ()
    """Keys or sections of a recipe that have no effect in this system. Changing them is an error; reports omit them."""
    needs_whole_batch: ClassVar[bool] = False
    """Whether the loss is not a mean over samples, so that processes which share a batch would train another net."""
    small: ClassVar[tuple[str, ...]] = ("data.limit=5000", "schedule.epochs=[2, 4, 4]", "run.test_every=0")
    """Changes KEY=VALUE of a recipe of this system that `linfnet reproduce --small` makes, to train on a CPU."""

    def __post_init__(self) -> None:
        check_numbers(self, "system")

    @abstractmethod
    def build(self, recipe: Recipe, info: SetInfo) -> Classifier:
        """Build the net with random weights for the images of a data set."""

    @abstractmethod
    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, and the net's logits [B, K].

        Args:
            recipe: the recipe of the run.
            net: the net that `build` returned, in training mode and at `state.p`.
            pixels: [B, C, H, W] in [0, 1].
            labels: [B].
            state: the schedule at this step.
        """


class FeatureSystem(System):
    """A system whose loss depends on the images only through one tensor, the features; these are the logits by default.

    The features must depend only on the images, on p and on tensors of the net: on a GPU, training replays their
    computation from CUDA graphs.
    """

    def features(self, net: Classifier, pixels: Tensor) -> Tensor:
        """Return the features [B, ...] of images [B, C, H, W]."""
        return net(pixels)

    @abstractmethod
    def loss_from_features(
        self, recipe: Recipe, net: Classifier, features: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and the net's logits [B, K], as `loss` does."""

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        return self.loss_from_features(recipe, net, self.features(net, pixels), labels, state)


class WeightedSystem(System):
    """A system whose loss depends on the schedule only through a few numbers, such as eps and weights of terms.

    On a GPU, training replays the loss and its gradients from a CUDA graph, in which these numbers are tensors. It does
    not if a subclass overrides `loss`.
    """

    @abstractmethod
    def weights(self, state: StepState) -> dict[str, float]:
        """Return the numbers at a step; always the same names."""

    @abstractmethod
    def weighted_loss(
        self, net: Classifier, pixels: Tensor, labels: Tensor, weights: Mapping[str, float | Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and the net's logits [B, K], as `loss` does.

        A number that is 0 is a float, so `is_zero` can be tested; others may be tensors without dimensions.
        """

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        return self.weighted_loss(net, pixels, labels, self.weights(state))


def is_zero(weight: float | Tensor) -> bool:
    """Return whether a number of a `WeightedSystem` is 0; reading a tensor would not be possible in a CUDA graph."""
    return not isinstance(weight, Tensor) and weight == 0


class LossModule(nn.Module):
    """The loss of a `WeightedSystem` as a module with the parameters of the net."""

    def __init__(self, system: WeightedSystem, net: Classifier) -> None:
        super().__init__()
        self.system, self.net = system, net

    def forward(self, pixels: Tensor, labels: Tensor, weights: Mapping[str, float | Tensor]) -> tuple[Tensor, Tensor]:
        return self.system.weighted_loss(self.net, pixels, labels, weights)


class FeatureModule(nn.Module):
    """The function from images to features as a module with the parameters of the net."""

    def __init__(self, system: FeatureSystem, net: Classifier) -> None:
        super().__init__()
        self.system, self.net = system, net

    def forward(self, pixels: Tensor) -> Tensor:
        return self.system.features(self.net, pixels)


SYSTEMS: Registry[type[System]] = Registry("system.name")


def system_of(recipe: Recipe) -> System:
    """Return the system of a recipe; the types and ranges of the keys in its [system] are checked."""
    own = {key: value for key, value in recipe.system.items() if key != "name"}
    return options_from_mapping(SYSTEMS[recipe.system_name], own, "system")


def check_built(recipe: Recipe, net: Classifier) -> None:
    """Raise an error if a net that the system of a recipe has built could not be certified or loaded after training."""
    kind, name = type(net), recipe.system_name
    loaded = getattr(SYSTEMS[net.system], "net_type", None) if net.system in SYSTEMS else None
    if loaded is not kind and net.system != name:
        raise LinfnetError(
            f"{kind.__name__}.system is {net.system!r}; expected {name!r}, the system that built the net"
        )
    if loaded is not kind:
        found = "not set" if loaded is None else loaded.__name__
        raise LinfnetError(
            f"{SYSTEMS[name].__name__}.net_type is {found}; expected {kind.__name__}, the class of its nets"
        )
    if kind.from_config.__module__.startswith("linfnet."):  # a user's own `from_config` may not call the constructor
        try:
            inspect.signature(kind).bind(**arguments_of(kind, net.config()))
        except TypeError as error:
            raise LinfnetError(
                f"{kind.__name__}.settings() does not return the additional arguments of the constructor: {error}"
            ) from None
    inherited = {Classifier.certified, ProductNet.certified, Classifier.certified_radius, Classifier.least_margin}
    if {kind.certified, kind.certified_radius, kind.least_margin} <= inherited and not isinstance(net, ProvenNet):
        raise no_certificate(net)


def step_seed(recipe: Recipe, state: StepState) -> int:
    """Return a seed for one step: a resumed run draws the same random numbers as an uninterrupted one."""
    return recipe.run.seed + round(state.epoch * 2**20)


def step_source(recipe: Recipe, state: StepState, device: torch.device) -> torch.Generator:
    """Return a source of random numbers for one step, with the seed of `step_seed`."""
    return torch.Generator(device).manual_seed(step_seed(recipe, state))


def has_effect(recipe: Recipe, key: str) -> bool:
    """Return whether a recipe's system uses a key or section."""
    unused = SYSTEMS[recipe.system_name].unused
    return key not in unused and key.split(".")[0] not in unused


def check_changes(before: Recipe, after: Recipe) -> None:
    """Raise an error if a changed key has no effect in the recipe's system."""
    system = after.system_name
    for unused in SYSTEMS[system].unused:
        section, _, name = unused.partition(".")
        old, new = vars(getattr(before, section)), vars(getattr(after, section))
        for key, value in new.items():
            if name in ("", key) and old.get(key) != value:
                raise ArgumentError(f"{section}.{key} is {value}, but it has no effect for system {system!r}")


def load_model(folder: Path | str, *, device: torch.device | str = "cpu") -> Classifier:
    """Load the net of any system from a run or model folder, in eval mode at p = inf; nothing is unpickled.

    Args:
        folder: a folder, the name of a model in the package (see `list_models`), or `hf://user/name`.
        device: the device of the net: `cpu`, `cuda` or `cuda:INDEX`; `auto` selects a GPU if there is one.

    >>> from linfnet.systems import load_model
    >>> load_model("mnist-small").image_shape
    (1, 28, 28)
    """
    if not isinstance(folder, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"the model is a {type(folder).__name__}; expected a folder or a name")
    path = find_model(folder)
    if not path.is_dir():
        names = pretrained_names()
        hint = nearest(str(folder), names)
        raise LinfnetError(f"{folder} is not a folder or a packaged model ({', '.join(names)}){hint}")
    if not (path / "config.json").exists() and (path / "recipe.toml").is_file():
        environment = read_table(path / "env.json") if (path / "env.json").is_file() else {}
        state = "has not finished"
        if (path / "model.safetensors").exists():
            state = "has only the weights of your own net" if environment.get("net") else "has lost its config.json"
        raise LinfnetError(f"the run in {folder} {state}; call linfnet.fit(…, resume=True) with the same arguments")
    config = read_table(path / "config.json")
    # Only registered names are accepted: a config.json cannot cause an import.
    net = SYSTEMS[system_name(config)].net_type.load_with_config(path, config, device=choose_device(device))
    _check_about(path, config)
    return net


def _check_about(path: Path, config: Mapping[str, Any]) -> None:
    """Check the keys of a config.json that name the data and the epsilons for which the net was trained."""
    known: Any = config.get("data", ""), config.get("eps", [])
    if not isinstance(known[0], str) or not isinstance(known[1], list):
        key = "eps" if isinstance(known[0], str) else "data"
        expected = 'a list such as ["8/255"]' if key == "eps" else "the name of a data set"
        raise LinfnetError(f"{path / 'config.json'}: {key} is {config[key]!r}; expected {expected}")
    try:
        parse_epsilons(cast(list[Any], known[1]))
    except ArgumentError as error:
        raise LinfnetError(f"{path / 'config.json'}: {error}") from None
