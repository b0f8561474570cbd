"""The accuracies of a report: headline figures and the table of results, next to published ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from linfnet.epsilon import format_epsilon
from linfnet.report.charts import reference_name
from linfnet.report.run_summary import RunSummary
from linfnet.reproduce import STUDIES
from linfnet.results import Result


@dataclass(frozen=True)
class Published:
    """Reported accuracies in percent; 0 or None where a figure was not given."""

    source: str
    epsilon: str
    clean: float | None
    pgd: float | None
    certified: float | None


@dataclass(frozen=True)
class RowGroup:
    """Results of one net on one image set, and which of them is highlighted; `run` is the index of the run."""

    name: str
    run: int
    results: list[Result]
    highlighted: Result | None


def published(run: RunSummary) -> list[Published]:
    """The accuracies reported for the run's recipe, then those of the authors' released log."""
    if run.recipe is None or run.epsilon is None:
        return []
    epsilon, reported = format_epsilon(run.epsilon), run.recipe.reported
    if not (reported.source and reported.certified):
        return []
    name = reference_name(reported.source)
    source = reported.source if name == "paper" else f"{name} run, {reported.source}"
    cost = f" ({reported.cost})" if reported.cost else ""
    row = Published(source + cost, epsilon, reported.clean, reported.pgd, reported.certified)
    logs = [cell.log for cell in STUDIES["table1"].cells if cell.label == run.recipe.name]
    return [row] + [Published("the authors' log", epsilon, log.clean, log.pgd, log.certified) for log in logs]


def headline(run: RunSummary) -> tuple[list[tuple[str, float, float | None]], str]:
    """The most important figures and a line about them; empty if there are none.

    Each figure has a name, a share in [0, 1], and the published accuracy in percent or None.
    """
    at, training = run.at_epsilon, run.results.training
    known = next(iter(published(run)), None)
    clean, pgd, certified = (known.clean, known.pgd, known.certified) if known else (None, None, None)
    epsilon = "" if run.epsilon is None else f"ε = {format_epsilon(run.epsilon)}"
    if at is not None:
        attacked = (f"under {at.attack}", at.attacked, pgd)
        figures = [("clean", at.clean, clean), attacked, ("certified", at.best_certified, certified)]
        return figures, f"{at.count:,} images, {epsilon}"
    if training is None or run.epsilon is None or run.epsilon not in training.test.certified:
        return [], ""
    proven = ("certified (real arithmetic)", training.test.certified[run.epsilon], certified)
    return [("clean", training.test.clean, clean), proven], f"measured by training on the test images, {epsilon}"


def row_groups(run: RunSummary, index: int) -> list[RowGroup]:
    """The evaluations of a run by image set, those of the main set first."""
    groups: dict[str, list[Result]] = {result.images: [] for result in run.main}
    for result in (*run.main, *(r for r in run.results.evaluations if r not in run.main)):
        groups.setdefault(result.images, []).append(result)
    return [RowGroup(_name(run, results[0]), index, results, run.at_epsilon) for results in groups.values()]


def _name(run: RunSummary, result: Result) -> str:
    """The net, and how its images and attack differ from those of the main evaluations."""
    words = [f"{result.net} net" if result.net else run.name]
    main = run.main[0] if run.main else None
    if main is None or (main.data, main.split) != (result.data, result.split):
        words.append(f"{result.data} {result.split}")
    if result.limit is not None and (main is None or main.limit != result.limit):
        words.append(f"first {result.limit:,} images")
    if main is not None and main.attack != result.attack:
        words.append(str(result.attack))
    return ", ".join(words)


def certificate_names(runs: Sequence[RunSummary]) -> list[str]:
    """The names of all certificates of the runs' evaluations, the margin first."""
    names = dict.fromkeys(name for run in runs for r in run.results.evaluations for name in r.certified)
    return sorted(names, key=lambda name: name != "margin")


def attack_name(results: Sequence[Result]) -> str:
    """The attack that all results have in common, without steps if they differ; empty for no result."""
    names = {str(result.attack) for result in results} or {""}
    words = {name.partition("-")[0] for name in names}
    return names.pop() if len(names) == 1 else words.pop() if len(words) == 1 else "attack"
