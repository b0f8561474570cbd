"""How the command line speaks: tables and progress on standard output, mistakes as one line on standard error."""

from rich.console import Console
from rich.table import Table

from linfnet.evaluation import Evaluation
from linfnet.perturbation import format_epsilon

# Paths and commands must stay whole, to be copied: no wrapping, and brackets are only brackets.
console = Console(highlight=False, markup=False, soft_wrap=True)


def percent(share: float) -> str:
    """A share in [0, 1] as a percentage.

    >>> percent(0.4006)
    '40.06'
    """
    return f"{100 * share:.2f}"


def results_table(title: str, rows: list[tuple[str, Evaluation]]) -> Table:
    """Clean, attacked and certified accuracy in percent: one row for each net and epsilon."""
    steps = rows[0][1].steps
    table = Table(title=title, title_justify="left")
    for name in ("net", "eps"):
        table.add_column(name)
    for name in ("clean", f"PGD-{steps}", "certified (margin)", "certified (interval)"):
        table.add_column(name, justify="right")
    for net, evaluation in rows:
        for at in evaluation.at:
            shares = at.summary()
            cells = (evaluation.clean, shares["pgd"], shares["certified_margin"], shares["certified_interval"])
            table.add_row(net, format_epsilon(at.epsilon), *map(percent, cells))
    return table
