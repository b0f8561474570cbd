"""The accuracies of a report: the headline and the table of results, next to published accuracies."""

from collections.abc import Sequence

from linfnet.epsilon import format_epsilon
from linfnet.report.charts import reference_name
from linfnet.report.run_summary import RunSummary
from linfnet.reproduce import STUDIES, Figures
from linfnet.results import Result


def published(run: RunSummary) -> list[tuple[str, Figures]]:
    """Return the accuracies reported for the run's recipe and in the authors' released log, each with its source."""
    reported = run.recipe.reported if run.recipe else None
    if run.recipe is None or reported is None or not (reported.source and reported.certified):
        return []
    name = reference_name(reported.source)
    source = reported.source if name == "paper" else f"{name} run"
    cost = f" ({reported.cost})" if reported.cost else ""
    figures = Figures(reported.clean, reported.pgd, reported.certified)
    logs = [cell.log for cell in STUDIES["table1"].cells if cell.label == run.recipe.name]
    return [(source + cost, figures), *(("the authors' log", log) for log in logs)]


def headline(run: RunSummary) -> tuple[list[tuple[str, float, float | None]], str]:
    """Return the most important figures and a line about them; both are empty if there are no figures.

    Each figure has a name, a share in [0, 1], and the published accuracy in percent or None.
    """
    at, training = run.at_epsilon, run.results.training
    known = next((figures for _, figures in published(run)), Figures())
    epsilon = "" if run.epsilon is None else f"ε = {format_epsilon(run.epsilon)}"
    if at is not None:
        attacked = (f"under {at.attack}", at.attacked, known.pgd)
        figures = [("clean", at.clean, known.clean), attacked, ("certified", at.best_certified, known.certified)]
        return figures, f"On {at.count:,} test images, at {epsilon}.{_about_reference(run)}"
    test = training.test if training else None
    if test is None or run.epsilon is None or run.epsilon not in test.certified:
        return [], ""
    proven = ("certified (real arithmetic)", test.certified[run.epsilon], known.certified)
    return [
        ("clean", test.clean, known.clean),
        proven,
    ], f"Measured on the test images during training, at {epsilon}.{_about_reference(run)}"


def _about_reference(run: RunSummary) -> str:
    """Return a sentence about the published figures, unless they are the paper's."""
    reported = run.recipe.reported if run.recipe and published(run) else None
    if reported is None or reference_name(reported.source) == "paper":
        return ""
    return f" The reference run is an earlier run of the same recipe ({reported.source})."


def row_groups(run: RunSummary) -> list[tuple[str, list[Result]]]:
    """Return the evaluations of a run in named groups, one for each net and image set; the main set is first."""
    groups: dict[str, list[Result]] = {result.images: [] for result in run.main}
    for result in (*run.main, *(r for r in run.results.evaluations if r not in run.main)):
        groups.setdefault(result.images, []).append(result)
    return [(_name(run, results[0]), results) for results in groups.values()]


def _name(run: RunSummary, result: Result) -> str:
    """Return the name of the net, and the images and the attack if they differ from the main evaluations."""
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
    """Return the names of all certificates in the evaluations of the runs, with "margin" first."""
    names = dict.fromkeys(name for run in runs for r in run.results.evaluations for name in r.certified)
    return sorted(names, key=lambda name: name != "margin")


def attack_name(results: Sequence[Result]) -> str:
    """Return the name of the attack, without its steps if these differ; empty if there are no results."""
    names = {str(result.attack) for result in results} or {""}
    words = {name.partition("-")[0] for name in names}
    return names.pop() if len(names) == 1 else words.pop() if len(words) == 1 else "attack"
