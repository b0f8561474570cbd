"""Results of evaluations and of training: the typed records that all other parts of the library use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated

from linfnet.errors import ArgumentError

Share = Annotated[float, "from 0 to 1"]
"""An accuracy or a probability; checked where results are read."""


@dataclass(frozen=True)
class AttackSettings:
    """An attack and its number of steps."""

    name: str = "pgd"
    steps: int = 100

    def __str__(self) -> str:
        return f"{self.name.upper() if self.name == 'pgd' else self.name}-{self.steps}"


# The paper's attack, and the default everywhere.
PGD_100 = AttackSettings()


@dataclass(frozen=True)
class Result:
    """The result of one evaluation at one epsilon; accuracies in [0, 1]."""

    data: str
    """The data set by name."""
    split: str
    """test or train."""
    count: int
    """How many images were evaluated."""
    eps: Fraction
    """The perturbation, in pixel units."""
    clean: Share
    """Accuracy on unperturbed images."""
    attacked: Share
    """Accuracy under the attack."""
    certified: Mapping[str, Share]
    """Certified accuracy by the name of each certificate: margin and interval, or the one of another system."""
    attack: AttackSettings = PGD_100
    limit: int | None = None
    """Only the first `limit` images of the split were evaluated; None for all."""
    net: str = ""
    """Empty for the net of the folder; otherwise another net, such as the nearest-neighbour net of the demo."""
    arithmetic: str = "float32"
    """float32: the certificates hold for the floating-point program. real: rounding is ignored."""
    confidence: Share = 1.0
    """The probability with which each certificate holds."""
    certify_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds per image by the name of each certificate."""
    seconds: float = 0.0
    """Seconds of the whole evaluation at this epsilon."""

    def __post_init__(self) -> None:
        if not self.certified:
            raise ArgumentError("certified is empty; wanted the accuracy of at least one certificate")

    @property
    def images(self) -> str:
        """Net, images and attack as one name, for tables and files.

        >>> Result("mnist", "test", 500, Fraction(3, 10), 0.9, 0.8, {"margin": 0.7}, limit=500).images
        'mnist-test-first-500'
        """
        first = "" if self.limit is None else f"-first-{self.limit}"
        attack = "" if self.attack == PGD_100 else f"-{self.attack.name}-{self.attack.steps}"
        return f"{self.net} {self.data}-{self.split}{first}{attack}".strip()

    @property
    def best(self) -> str:
        """The name of the certificate with the largest accuracy; the margin, which is cheapest, wins ties."""
        return max(self.certified, key=lambda name: (self.certified[name], name == "margin"))

    @property
    def best_certified(self) -> float:
        """The largest certified accuracy."""
        return self.certified[self.best]

    @property
    def subject(self) -> tuple[object, ...]:
        """What was evaluated: a later evaluation of the same subject replaces an earlier one."""
        return self.net, self.data, self.split, self.limit, self.attack, self.eps


@dataclass(frozen=True)
class Accuracies:
    """Clean and certified accuracy of one split as training computes them, in real arithmetic."""

    clean: Share
    certified: Mapping[Fraction, Share]
    """By epsilon; empty where certification is expensive."""
    above: Share | None = None
    """Share of samples with a margin above theta; the next two: in [0, theta], and below 0."""
    between: Share | None = None
    below: Share | None = None


@dataclass(frozen=True)
class TrainingResult:
    """What training itself measured at its end, and what it cost."""

    test: Accuracies
    train: Accuracies | None
    """On the training images; None in old files."""
    epochs: int
    seconds: float
    seed: int
    parameters: int
    device: str = ""
    processes: int = 1


@dataclass(frozen=True)
class Results:
    """The contents of results.json."""

    training: TrainingResult | None = None
    evaluations: tuple[Result, ...] = ()

    def find(
        self, data: str, eps: Fraction, *, limit: int | None = None, attack: AttackSettings = PGD_100
    ) -> Result | None:
        """The evaluation of the folder's own net on these test images at this epsilon, or None.

        A limit of at least the number of images counts as no limit.
        """
        exact, whole = (("", data, "test", size, attack, eps) for size in (limit, None))
        for result in self.evaluations:
            if result.subject == exact or (result.subject == whole and result.count <= (limit or 0)):
                return result
        return None
