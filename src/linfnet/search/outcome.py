"""The outcome of a search: all finished trials, the mean and the spread of each variant, and files with all of them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import mean, stdev
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import read_table, write_json, write_text
from linfnet.recipes import recipe_to_toml
from linfnet.reproduce.outcome import hardware_of
from linfnet.results import read_results
from linfnet.results.storage import write_columns
from linfnet.search.plan import Plan, Trial
from linfnet.search.variants import Variant
from linfnet.train import RunFolder


@dataclass(frozen=True)
class TrialOutcome:
    """A finished trial: accuracies in [0, 1] at the first epsilon of the recipe, and the cost of training."""

    variant: str
    seed: int
    certified: float
    """Certified accuracy on the held-out images, by which variants are ranked."""
    clean: float
    """Accuracy on the held-out images."""
    certified_train: float
    """Certified accuracy on the training images."""
    clean_train: float
    """Accuracy on the training images."""
    never_predicted: int | None
    """The number of classes that the net predicts for no held-out image; None for trials of older versions."""
    seconds: float
    """Seconds of training."""
    epochs: int
    hardware: str
    commit: str


# The columns of the table: certified and clean accuracy are those on held-out images.
COLUMNS = ("variant", "seeds", "certified", "clean", "certified on train", "classes never predicted", "seconds")
FIGURES = ("certified", "clean", "certified_train", "clean_train", "seconds")


@dataclass(frozen=True)
class Spread:
    """The mean of a figure over the seeds, and its standard deviation, which is None for one seed."""

    mean: float
    deviation: float | None

    def percent(self) -> str:
        """Return the mean and the deviation in percent.

        >>> Spread(0.354, 0.0051).percent(), Spread(0.354, None).percent()
        ('35.40 ± 0.51', '35.40')
        """
        deviation = "" if self.deviation is None else f" ± {100 * self.deviation:.2f}"
        return f"{100 * self.mean:.2f}{deviation}"


@dataclass(frozen=True)
class Summary:
    """The finished trials of one variant."""

    variant: Variant
    trials: tuple[TrialOutcome, ...]

    def spread(self, figure: str) -> Spread:
        """Return the spread of a field of `TrialOutcome` over the seeds."""
        values = [float(getattr(trial, figure)) for trial in self.trials]
        return Spread(mean(values), stdev(values) if len(values) > 1 else None)

    @property
    def never_predicted(self) -> float | None:
        """The mean number of classes that are never predicted, over the trials where it is known."""
        counts = [trial.never_predicted for trial in self.trials if trial.never_predicted is not None]
        return mean(counts) if counts else None


@dataclass(frozen=True)
class SearchOutcome:
    """The variants of a search with their finished trials, and the error messages of trials that failed."""

    plan: Plan
    trials: tuple[TrialOutcome, ...]
    failed: dict[str, str]

    @property
    def ranked(self) -> list[Summary]:
        """The variants with finished trials; the first has the largest mean certified accuracy on held-out images."""
        summaries = [
            Summary(variant, tuple(trial for trial in self.trials if trial.variant == variant.name))
            for variant in self.plan.variants
        ]
        finished = [summary for summary in summaries if summary.trials]
        return sorted(finished, key=lambda summary: -summary.spread("certified").mean)

    @property
    def title(self) -> str:
        """The recipe, its size and schedule, and the images on which variants are ranked."""
        recipe = self.plan.recipe
        model, data = recipe.model, recipe.data
        limit = f"first {data.limit:,} other training images, " if data.limit else ""
        return (
            f"{recipe.name} at ε = {format_epsilon(recipe.evaluation.eps[0])}, depth {model.depth}, width "
            f"{model.width}, {'/'.join(map(str, recipe.schedule.epochs))} epochs, {limit}ranked on {data.hold_out:,} "
            "held-out training images"
        )

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the cells of the table: name, number of seeds, the accuracies in percent, and seconds."""
        for summary in self.ranked:
            certified, clean, train, _, seconds = (summary.spread(figure) for figure in FIGURES)
            never = "–" if summary.never_predicted is None else f"{summary.never_predicted:.1f}"
            others = (f"{100 * clean.mean:.2f}", f"{100 * train.mean:.2f}", never, f"{seconds.mean:.0f}")
            yield summary.variant.name, str(len(summary.trials)), certified.percent(), *others

    def markdown(self) -> str:
        """Return the table of all variants, best first, in Markdown."""
        lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows()]
        lines += ["", *(f"Failed: {name}: {error}" for name, error in self.failed.items())]
        return "\n".join(lines).strip() + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return everything about the search as JSON values."""
        return {
            "title": self.title,
            "recipe": recipe_to_toml(self.plan.recipe),
            "variants": [
                {
                    "name": summary.variant.name,
                    "changes": summary.variant.changes,
                    "spread": {figure: asdict(summary.spread(figure)) for figure in FIGURES},
                    "trials": [asdict(trial) for trial in summary.trials],
                }
                for summary in self.ranked
            ],
            "failed": self.failed,
        }

    def write(self) -> None:
        """Write `outcome.json`, `outcome.csv` with one row for each trial, and the table as `outcome.md`."""
        write_json(self.plan.out / "outcome.json", self.to_json())
        columns = {field.name: [getattr(trial, field.name) for trial in self.trials] for field in fields(TrialOutcome)}
        write_columns(self.plan.out / "outcome.csv", columns)
        write_text(self.plan.out / "outcome.md", f"# {self.title}\n\n{self.markdown()}")


def gather(plan: Plan, failed: dict[str, str] | None = None) -> SearchOutcome:
    """Read the outcome of all finished trials in the folder of a search."""
    trials: list[TrialOutcome] = []
    for trial in plan.found():
        with contextlib.suppress(LinfnetError):  # it has not finished
            trials.append(read_trial(trial))
    return SearchOutcome(plan, tuple(trials), failed or {})


def is_finished(trial: Trial) -> bool:
    """Return whether the results of a trial have been written."""
    try:
        read_trial(trial)
    except LinfnetError:
        return False
    return True


def read_trial(trial: Trial) -> TrialOutcome:
    """Read the outcome of a finished trial from its folder; its weights are not needed."""
    training = read_results(trial.path).training
    if training is None or training.held_out is None or training.train is None:
        raise LinfnetError(f"{trial.path} has no results on held-out images")
    environment, eps = read_table(trial.path / "env.json"), trial.recipe.evaluation.eps[0]
    return TrialOutcome(
        variant=trial.variant.name,
        seed=training.seed,
        certified=training.held_out.certified[eps],
        clean=training.held_out.clean,
        certified_train=training.train.certified[eps],
        clean_train=training.train.clean,
        never_predicted=training.held_out.never_predicted,
        seconds=training.seconds,
        epochs=training.epochs,
        hardware=hardware_of(environment, training.device, RunFolder.open(trial.path).events()),
        commit=str(environment.get("commit") or ""),
    )


def count_epochs(trials: Sequence[Trial]) -> int:
    """Return the number of epochs that have been trained in the folders of trials."""
    logs = (trial.path / "events.jsonl" for trial in trials)
    return sum(log.read_bytes().count(b'{"event": "epoch"') for log in logs if log.is_file())
