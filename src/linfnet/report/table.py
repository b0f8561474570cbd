"""What was measured, beside what was published."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from linfnet.epsilon import format_epsilon
from linfnet.report.run_summary import Measured, RunRecord
from linfnet.reproduce import STUDIES


@dataclass(frozen=True)
class Published:
    """A row that somebody reported, in percent; 0 or None where a figure was not given."""

    source: str
    epsilon: str
    clean: float | None
    pgd: float | None
    certified: float | None

    @property
    def short(self) -> str:
        """The source in a word."""
        return "paper" if self.source.startswith("the paper") else "recorded"


def published(run: RunRecord) -> list[Published]:
    """What is known to be reached by the run's recipe: the paper's row, then the authors' released log."""
    if run.recipe is None or run.epsilon is None:
        return []
    epsilon, reported = format_epsilon(run.epsilon), run.recipe.reported
    if not (reported.source and reported.certified):
        return []
    cost = f" ({reported.cost})" if reported.cost else ""
    row = Published(reported.source + cost, epsilon, reported.clean, reported.pgd, reported.certified)
    logs = [cell.log for cell in STUDIES["table1"].cells if cell.label == run.recipe.name]
    return [row] + [Published("the authors' log", epsilon, log.clean, log.pgd, log.certified) for log in logs]


def scrolling(label: str, rows: str) -> str:
    """A table in a box of its own, which scrolls sideways where the page is narrow, by keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table>{rows}</table></div>'


def headline(run: RunRecord) -> str:
    """The three figures that matter, large, with the paper's small beside them."""
    at = run.at_epsilon
    known = next(iter(published(run)), None)
    if at is None or run.epsilon is None:
        return _headline_of_training(run, known)
    figures = [
        ("clean", at.clean, known.clean if known else None),
        (f"after PGD-{at.pgd_steps}", at.pgd, known.pgd if known else None),
        ("certified", at.best, known.certified if known else None),
    ]
    return _figures(figures, known, f"{at.samples:,} images, ε = {format_epsilon(run.epsilon)}")


def _headline_of_training(run: RunRecord, known: Published | None) -> str:
    """What training itself measured, for a run that was not evaluated."""
    train = run.results.get("train")
    if not isinstance(train, dict) or run.epsilon is None:
        return ""
    clean, certified = train.get("clean"), train.get("certified", {}).get(format_epsilon(run.epsilon))
    if not (isinstance(clean, int | float) and isinstance(certified, int | float)):
        return ""
    figures = [
        ("clean", clean, known.clean if known else None),
        ("certified (real arithmetic)", certified, known.certified if known else None),
    ]
    return _figures(figures, known, f"as training measured it, ε = {format_epsilon(run.epsilon)}")


def _figures(figures: Sequence[tuple[str, float, float | None]], known: Published | None, about: str) -> str:
    parts: list[str] = []
    for name, share, theirs in figures:
        beside = f"{known.short} {theirs:.2f}" if known and theirs else "&nbsp;"
        parts.append(
            f'<div><dt>{name}</dt><dd><span class="big">{100 * share:.2f}<small>%</small></span>'
            f'<span class="beside">{beside}</span></dd></div>'
        )
    return f'<dl class="headline">{"".join(parts)}</dl><p class="about">{about}</p>'


def results_section(runs: Sequence[RunRecord]) -> str:
    """The table of all evaluations, each run followed by what was published for its recipe."""
    names = list(dict.fromkeys(name for run in runs for m in run.measured for name in m.certified))
    rows: list[str] = []
    for k, run in enumerate(runs):
        ours = run.main + tuple(m for m in run.measured if m.what != run.what)
        if not ours:
            continue
        rows += [_row(run, m, k if len(runs) > 1 else None, names) for m in ours]
        rows += [_published_row(row, len(names)) for row in published(run)]
    if not rows:
        return ""
    steps = {m.pgd_steps for run in runs for m in run.measured}
    attack = f"PGD-{steps.pop()}" if len(steps) == 1 else "PGD"
    heads = ("what", "ε", "images", "clean", attack, *(f"certified, {name}" for name in names))
    head = "".join(
        f'<th scope="col"{"" if k == 0 else " class=number"}>{escape(name)}</th>' for k, name in enumerate(heads)
    )
    return scrolling("Table of results", f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>")


def _row(run: RunRecord, m: Measured, colour: int | None, names: Sequence[str]) -> str:
    main = m.what == run.what
    name = run.name if main else m.what
    key = "" if colour is None else f' class="key c{colour % 6}"'
    strong = ' class="strong"' if main and m.epsilon == run.epsilon else ""
    shares = (m.clean, m.pgd, *(m.certified.get(name) for name in names))
    cells = "".join(f"<td class=number>{'–' if share is None else f'{100 * share:.2f}'}</td>" for share in shares)
    return (
        f"<tr{strong}><th scope=row><span{key}>{escape(name)}</span></th><td class=number>{escape(m.name)}</td>"
        f"<td class=number>{m.samples:,}</td>{cells}</tr>"
    )


def _published_row(row: Published, columns: int) -> str:
    clean, attacked, certified = (f"{value:.2f}" if value else "–" for value in (row.clean, row.pgd, row.certified))
    cells = f"<td class=number>{clean}</td><td class=number>{attacked}</td>"
    cells += f"<td class=both colspan={columns}>{certified}</td>"
    return (
        f'<tr class="published"><th scope=row>{escape(row.source)}</th><td class=number>{escape(row.epsilon)}</td>'
        f"<td></td>{cells}</tr>"
    )
