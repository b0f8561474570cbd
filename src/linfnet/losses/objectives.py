"""What an objective is, and how recipes find one by its name."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, TypeVar

from torch import Tensor

from linfnet.errors import ArgumentError, at_least, nearest


@dataclass(frozen=True)
class Moment:
    """Where training stands: all that an objective may look at besides logits and labels."""

    started: float  # progress through the first phase, 0 to 1
    relaxed: float  # progress of the rise of p, 0 to 1
    scale: Tensor  # the temperature s of the net
    lipschitz: float  # logits per pixel unit at p = inf


@dataclass(frozen=True)
class Objective(ABC):
    """A training objective. Its fields are the keys of a recipe's [loss], checked when it is made."""

    # In pixel units. Training also counts the margins above it, whatever the objective makes of it.
    theta: Fraction = Fraction(48, 255)

    name: ClassVar[str]
    learns_scale: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least("loss.theta", float(self.theta), 0, strictly=True)

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor, moment: Moment) -> Tensor:
        """The loss of a batch, averaged over its samples: logits [B, K], labels [B]."""

    def mixing(self, relaxed: float) -> float:
        """The weight of the cross-entropy at a progress of the relaxation, for objectives that mix."""
        return 0.0

    def threshold(self, moment: Moment) -> float:
        """theta in the units of the logits."""
        return float(self.theta) * moment.lipschitz


_KNOWN: dict[str, type[Objective]] = {}
Kind = TypeVar("Kind", bound=type[Objective])


def objective(name: str) -> Callable[[Kind], Kind]:
    """Class decorator: recipes may ask for the class as `loss.name`."""

    def note(kind: Kind) -> Kind:
        known = _KNOWN.setdefault(name, kind)
        if known is not kind:
            raise ArgumentError(f"objective is {name!r}, which is already {known.__module__}.{known.__qualname__}")
        kind.name = name
        return kind

    return note


def objective_names() -> tuple[str, ...]:
    """All objectives by name."""
    return tuple(sorted(_KNOWN))


def find_objective(name: object) -> type[Objective]:
    """The class of a name; an error lists the names there are."""
    if isinstance(name, str) and name in _KNOWN:
        return _KNOWN[name]
    hint = nearest(str(name), _KNOWN)
    raise ArgumentError(f"loss.name is {name!r}; wanted one of {', '.join(objective_names())}{hint}")
