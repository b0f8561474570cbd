"""The typed records for the results of evaluations and of training, used by all other parts of the library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from linfnet.errors import ArgumentError

Share = Annotated[float, "from 0 to 1"]
"""An accuracy or a probability; its range is checked when results are read."""


def guarantee(arithmetic: str, confidence: float = 1.0) -> str:
    """Return the phrase that says in all output what a certified radius or accuracy promises.

    Args:
        arithmetic: `float32` if the certificate holds for the floating-point program, `real` if it ignores rounding.
        confidence: the probability that a certificate is correct.

    >>> guarantee("float32"), guarantee("real")
    ('proven in float32', 'proven in real arithmetic, rounding ignored')
    >>> guarantee("real", 0.999)
    'holds with probability 0.999 per image, rounding ignored'
    """
    if confidence < 1:
        rounding = "in float32" if arithmetic == "float32" else "rounding ignored"
        return f"holds with probability {confidence:.15g} per image, {rounding}"
    return "proven in float32" if arithmetic == "float32" else "proven in real arithmetic, rounding ignored"


@dataclass(frozen=True)
class AttackSettings:
    """An attack and its number of steps, which is 0 for attacks without this setting."""

    name: str = "pgd"
    steps: int = 100

    def __str__(self) -> str:
        name = self.name.upper() if self.name == "pgd" else self.name
        return f"{name}-{self.steps}" if self.steps else name


# The paper's attack, and the default everywhere.
PGD_100 = AttackSettings()


@dataclass(frozen=True)
class ExactAccuracy:
    """What the exact method decided: the true accuracy under all attacks is from `robust` to `robust + undecided`."""

    robust: Share
    """The share of images for which every image within epsilon is proven to have the correct class."""
    undecided: Share = 0.0
    """The share of images for which the budget of the search ended; the images that are left are broken."""


@dataclass(frozen=True)
class Result:
    """The result of one evaluation at one epsilon; accuracies in [0, 1]."""

    data: str
    """The name of the data set."""
    split: str
    """`test` or `train`."""
    count: int
    """The number of evaluated images."""
    eps: Fraction
    """The largest allowed change of a pixel, in pixel units."""
    clean: Share
    """Accuracy on unperturbed images."""
    attacked: Share
    """Accuracy under the attack."""
    certified: Mapping[str, Share]
    """Certified accuracy for each certificate name, such as margin and interval."""
    attack: AttackSettings = PGD_100
    limit: int | None = None
    """The number of images, if only the first images of the split were evaluated; otherwise None."""
    net: str = ""
    """Empty for the net in the folder; otherwise the name of another net, such as the demo's nearest-neighbour net."""
    arithmetic: str = "float32"
    """`float32` if the certificates hold for the floating-point program, `real` if they ignore rounding."""
    confidence: Share = 1.0
    """The probability that each certificate is correct."""
    exact: ExactAccuracy | None = None
    """The exact robust accuracy, if the evaluation decided it; it is between `certified` and `attacked`."""
    certify_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds per image for each certificate name."""
    seconds: float = 0.0
    """Seconds of the complete evaluation at this epsilon."""

    def __post_init__(self) -> None:
        if not self.certified:
            raise ArgumentError("certified is empty; expected the accuracy of at least one certificate")

    @property
    def images(self) -> str:
        """A name for the net, the images and the attack, for tables and file names.

        >>> Result("mnist", "test", 500, Fraction(3, 10), 0.9, 0.8, {"margin": 0.7}, limit=500).images
        'mnist-test-first-500'
        """
        first = "" if self.limit is None else f"-first-{self.limit}"
        attack = "" if self.attack == PGD_100 else f"-{self.attack.name}-{self.attack.steps}"
        return f"{self.net} {self.data}-{self.split}{first}{attack}".strip()

    @property
    def best(self) -> str:
        """The name of the certificate with the largest accuracy; in a tie, `margin`, which is the cheapest."""
        return max(self.certified, key=lambda name: (self.certified[name], name == "margin"))

    @property
    def best_certified(self) -> float:
        """The largest certified accuracy."""
        return self.certified[self.best]

    @property
    def guarantee(self) -> str:
        """What the certificates promise, as a phrase."""
        return guarantee(self.arithmetic, self.confidence)

    @property
    def subject(self) -> tuple[object, ...]:
        """Identifies what was evaluated. A new evaluation of the same subject replaces the old one."""
        return self.net, self.data, self.split, self.limit, self.attack, self.eps


@dataclass(frozen=True)
class Accuracies:
    """Clean and certified accuracy on one split, as computed during training in real arithmetic."""

    clean: Share
    certified: Mapping[Fraction, Share]
    """Certified accuracy for each epsilon; empty if certification is expensive."""
    above: Share | None = None
    """The share of samples with a margin above theta; `between`: with a margin in [0, theta]; `below`: below 0."""
    between: Share | None = None
    below: Share | None = None
    never_predicted: int | None = None
    """The number of classes of these samples that the net predicts for none of them; None in old files."""


@dataclass(frozen=True)
class TrainingResult:
    """The accuracies at the end of training, and the cost of training."""

    test: Accuracies | None
    """Accuracies on the test images; None without a test set."""
    train: Accuracies | None
    """Accuracies on the training images; None in old files."""
    epochs: int
    seconds: float
    seed: int
    parameters: int
    device: str = ""
    processes: int = 1
    held_out: Accuracies | None = None
    """Accuracies on the held-out training images, if the recipe has `data.hold_out`; `test` is None then."""
    cpu_seconds: float | None = None
    """Processor time of the training, of all threads of the first process; None in old files."""


@dataclass(frozen=True)
class Results:
    """The contents of results.json."""

    training: TrainingResult | None = None
    evaluations: tuple[Result, ...] = ()
    unread: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Entries of the file that this version of linfnet cannot interpret; they are written back unchanged."""

    def find(
        self, data: str, eps: Fraction, *, limit: int | None = None, attack: AttackSettings = PGD_100
    ) -> Result | None:
        """Return the evaluation of the folder's net on these test images at this epsilon, or None if there is none.

        A limit that is not below the number of images is the same as no limit.
        """
        exact, whole = (("", data, "test", size, attack, eps) for size in (limit, None))
        for result in self.evaluations:
            if result.subject == exact or (result.subject == whole and result.count <= (limit or 0)):
                return result
        return None
