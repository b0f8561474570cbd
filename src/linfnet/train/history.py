"""The events of a run as typed records, for callbacks, for `Fitted.history` and for events.jsonl."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.train.metrics import MEANS


@dataclass(frozen=True)
class EpochEvent:
    """An epoch has finished. Metrics are means over the training samples of the epoch, as the net was at each step."""

    epoch: int
    """The number of finished epochs."""
    step: int
    """The number of finished steps."""
    seconds: float
    """The training time so far."""
    p: float
    mixing: float
    """lambda at the last step of the epoch; 0 for losses that do not mix."""
    lr: float
    scale: float
    """The temperature s of the net."""
    loss: float
    accuracy: float
    above: float
    """The share of samples with a margin above theta; `between`: with a margin in [0, theta]; `below`: below 0."""
    between: float
    below: float

    def to_json(self) -> dict[str, Any]:
        """Return the values as they are stored in events.jsonl."""
        values = asdict(self)
        # JSON has no infinity; float(p) accepts both forms.
        p: float | str = self.p if math.isfinite(self.p) else "inf"
        first = {key: values[key] for key in ("epoch", "step", "seconds")}
        return {**first, "p": p, "lambda": self.mixing, **{key: values[key] for key in ("lr", "scale", *MEANS)}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EpochEvent":
        """Read the values of a line of events.jsonl."""
        numbers = {key: float(values[key]) for key in ("seconds", "p", "lr", "scale", *MEANS)}
        return cls(epoch=int(values["epoch"]), step=int(values["step"]), mixing=float(values["lambda"]), **numbers)


@dataclass(frozen=True)
class TestEvent:
    """The net was tested. Certified accuracies are in real arithmetic."""

    __test__ = False  # pytest must not collect it

    epoch: int
    """The number of finished epochs."""
    step: int
    """The number of finished steps."""
    seconds: float
    """The training time so far."""
    accuracy_at_p: float
    """The accuracy at the current p."""
    clean: float
    """The accuracy at p = inf."""
    certified: Mapping[Fraction, float]
    """The certified accuracy at p = inf for each epsilon; empty if certification is expensive."""

    def to_json(self) -> dict[str, Any]:
        """Return the values as they are stored in events.jsonl."""
        return {**vars(self), "certified": {format_epsilon(eps): share for eps, share in self.certified.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TestEvent":
        """Read the values of a line of events.jsonl."""
        certified = {parse_epsilon(eps): float(share) for eps, share in values["certified"].items()}
        numbers = {key: float(values[key]) for key in ("seconds", "accuracy_at_p", "clean")}
        return cls(epoch=int(values["epoch"]), step=int(values["step"]), certified=certified, **numbers)


class History(list[EpochEvent | TestEvent]):
    """The epochs and tests of a run, in order.

    >>> epoch = EpochEvent(1, 23, 0.4, 8.0, 0.1, 0.03, 1.0, loss=0.9, accuracy=0.5, above=0.2, between=0.3, below=0.5)
    >>> history = History([epoch])
    >>> history.column("loss"), history.tests
    ([0.9], [])
    """

    @property
    def epochs(self) -> list[EpochEvent]:
        """The epochs."""
        return [event for event in self if isinstance(event, EpochEvent)]

    @property
    def tests(self) -> list[TestEvent]:
        """The tests."""
        return [event for event in self if isinstance(event, TestEvent)]

    def column(self, name: str) -> list[float]:
        """Return one value of all epochs, such as `loss`, or of all tests, such as `clean`."""
        return [getattr(event, name) for event in self if hasattr(event, name)]

    @classmethod
    def from_json(cls, events: Iterable[Mapping[str, Any]]) -> "History":
        """Read the epochs and tests of an event log."""
        kinds = {"epoch": EpochEvent, "test": TestEvent}
        return cls(kinds[event["event"]].from_json(event) for event in events if event["event"] in kinds)
