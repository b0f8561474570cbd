"""How the command line speaks: tables and progress on standard output, mistakes as one line on standard error."""

import contextlib
from collections.abc import Generator

from rich.console import Console
from rich.table import Table

from linfnet.distributed.group import Ranks
from linfnet.epsilon import format_epsilon
from linfnet.evaluation import Evaluation

# Paths and commands must stay whole, to be copied: no wrapping, and brackets are only brackets.
console = Console(highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def heard(ranks: Ranks) -> Generator[None]:
    """Of several processes, only the first speaks on the console."""
    quiet, console.quiet = console.quiet, not ranks.first
    try:
        yield
    finally:
        console.quiet = quiet


def percent(share: float) -> str:
    """A share in [0, 1] as a percentage.

    >>> percent(0.4006)
    '40.06'
    """
    return f"{100 * share:.2f}"


def results_table(title: str, rows: list[tuple[str, Evaluation]]) -> Table:
    """Clean, attacked and certified accuracy in percent: one row for each net and epsilon."""
    steps = rows[0][1].steps
    names = list(dict.fromkeys(name for _, evaluation in rows for at in evaluation.at for name in at.certificates))
    table = Table(title=title, title_justify="left")
    for name in ("net", "eps"):
        table.add_column(name)
    for name in ("clean", f"PGD-{steps}", *(f"certified ({name})" for name in names)):
        table.add_column(name, justify="right")
    table.caption = _caption(rows)
    for net, evaluation in rows:
        for at in evaluation.at:
            shares = at.summary()
            cells = [evaluation.clean, shares["pgd"], *(shares.get(f"certified_{name}") for name in names)]
            table.add_row(net, format_epsilon(at.epsilon), *("" if cell is None else percent(cell) for cell in cells))
    return table


def _caption(rows: list[tuple[str, Evaluation]]) -> str | None:
    """A line under the table where certificates do not account for rounding."""
    lines = [f"{net}: {guarantee(at.arithmetic, at.confidence)}" for net, at in rows if at.arithmetic == "real"]
    return "\n".join(lines) or None


def guarantee(arithmetic: str, confidence: float) -> str:
    """What certificates are worth, in words.

    >>> guarantee("real", 0.999)
    'certificates hold in real arithmetic, rounding apart, with probability 0.999 each'
    """
    where = "for the program itself" if arithmetic == "float32" else "in real arithmetic, rounding apart"
    return f"certificates hold {where}" + (f", with probability {confidence:g} each" if confidence < 1 else "")
