"""The outcome of an evaluation: accuracies, and for each sample whether it is certified and survived the attack."""

from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.distributed.sharding import LONGEST, SUMMED
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError
from linfnet.nn.label_margin import label_on_top, margin, never_predicted
from linfnet.results import AttackSettings, ExactAccuracy, Result

# Largest number of broken samples that are saved for each epsilon.
EXAMPLES = 12


@dataclass(frozen=True)
class Broken:
    """Samples that are misclassified after the attack."""

    index: Tensor  # [n]
    images: Tensor  # [n, C, H, W]: the attacked images
    predictions: Tensor  # [n]: the classes that the net predicts for the attacked images
    radii: Tensor  # [n]: the certified radii of the samples

    def best(self) -> "Broken":
        """Return up to EXAMPLES samples with the largest certified radii."""
        order = self.radii.argsort(descending=True, stable=True)[:EXAMPLES]
        return Broken(self.index[order], self.images[order], self.predictions[order], self.radii[order])


@dataclass(frozen=True)
class AtEpsilon:
    """The outcome for each sample [N] at one epsilon."""

    eps: Fraction
    certified: dict[str, Tensor]  # bool [N] for each certificate name
    survived: Tensor  # bool [N]: classified correctly even after the attack
    broken: Broken  # a few examples
    seconds: float = field(metadata=LONGEST)
    certify_seconds: dict[str, float] = field(metadata=SUMMED)  # for all samples together, for each certificate name
    exact: Tensor | None = None  # bool [N]: proven robust by the exact method; None if it did not run
    undecided: Tensor | None = None  # bool [N]: its budget ended
    witnesses: Broken | None = None  # all correctly classified samples that are not robust, with the images it found

    @property
    def certified_by_any(self) -> Tensor:
        """bool [N]: which samples are certified by at least one certificate."""
        return torch.stack(list(self.certified.values())).any(0)


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation at p = inf: the accuracies `clean`, `attacked` and `certified`, and each sample.

    With several epsilons, `results` contains the accuracies for each of them.
    """

    data: str
    split: str
    limit: int | None
    attack: AttackSettings
    arithmetic: str
    confidence: float
    logits: Tensor  # [N, K]
    labels: Tensor  # [N]
    radii: dict[str, Tensor]  # float64 [N] in pixel units, for certificates in closed form; -inf if misclassified
    real_radii: Tensor | None  # float64 [N] in pixel units: `real_margin_radius`, for Lipschitz nets
    at: tuple[AtEpsilon, ...]

    @property
    def margins(self) -> Tensor:
        """The margins [N] in the units of the logits."""
        return margin(self.logits, self.labels)

    @property
    def clean(self) -> float:
        """The share of samples for which the logit of the true class is strictly the largest."""
        return share(label_on_top(self.logits, self.labels))

    @property
    def never_predicted(self) -> list[int]:
        """The classes of these samples that the net predicts for none of them."""
        return never_predicted(self.logits, self.labels)

    @property
    def attacked(self) -> float:
        """The accuracy under the attack, if there is one epsilon."""
        return self.result.attacked

    @property
    def certified(self) -> float:
        """The share of samples certified by at least one certificate, if there is one epsilon."""
        assert self.result
        return share(self.at[0].certified_by_any)

    @property
    def result(self) -> Result:
        """The result, if there is one epsilon."""
        if len(self.at) != 1:
            raise ArgumentError(f"the evaluation has {len(self.at)} epsilons; expected one: use .results")
        return self._result(self.at[0])

    def __repr__(self) -> str:
        rows: list[str] = []
        for at in self.at:
            exact = "" if at.exact is None else f" exact {share(at.exact):.4f}"
            shares = f"attacked {share(at.survived):.4f}{exact} certified {share(at.certified_by_any):.4f}"
            rows.append(f"eps {format_epsilon(at.eps)}: {shares}")
        shown = ", ".join(rows)
        return f"Evaluation({self.data}-{self.split}, {len(self.labels)} images, clean {self.clean:.4f}, {shown})"

    @property
    def results(self) -> tuple[Result, ...]:
        """One result for each epsilon."""
        return tuple(map(self._result, self.at))

    def _result(self, at: AtEpsilon) -> Result:
        count = len(self.labels)
        return Result(
            data=self.data,
            split=self.split,
            count=count,
            eps=at.eps,
            clean=self.clean,
            attacked=share(at.survived),
            certified={name: share(flags) for name, flags in at.certified.items()},
            attack=self.attack,
            limit=self.limit,
            arithmetic=self.arithmetic,
            confidence=self.confidence,
            exact=self._exact(at),
            certify_seconds={name: float(f"{spent / max(count, 1):.3g}") for name, spent in at.certify_seconds.items()},
            seconds=round(at.seconds, 2),
        )

    @staticmethod
    def _exact(at: AtEpsilon) -> ExactAccuracy | None:
        if at.exact is None or at.undecided is None:
            return None
        return ExactAccuracy(share(at.exact), share(at.undecided))


def share(flags: Tensor) -> float:
    """Return the share of flags [N] that are set."""
    return flags.double().mean().item()
