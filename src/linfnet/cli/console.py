"""Output of the command line: tables, progress bars and figures."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from linfnet.distributed.group import Group
from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError, printable
from linfnet.results import Result

# Seconds between two lines about the progress of a command whose output is not a terminal.
EVERY = 10.0


class SafeConsole(Console):
    """A console that escapes control characters in texts, which may be from foreign files.

    Without wrapping and markup, paths and commands can be copied from the output.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the text that is printed for a string, also for a string in a table."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)


console = SafeConsole()
errors = SafeConsole(stderr=True)


@contextlib.contextmanager
def only_first_prints(group: Group) -> Generator[None]:
    """Silence the console in all processes except the first."""
    quiet, console.quiet = console.quiet, not group.first
    try:
        yield
    finally:
        console.quiet = quiet


@contextlib.contextmanager
def progress_lines() -> Generator[Callable[[str], None]]:
    """Show the progress of a long command whose output is not a terminal, and yield a function that sets the text.

    The text is a line on standard error every `EVERY` seconds, with the time since the start.
    """
    shown, start, ended = "", time.monotonic(), threading.Event()

    def change(text: str) -> None:
        nonlocal shown
        shown = text

    def repeat() -> None:
        with contextlib.suppress(OSError, SystemExit):  # the pipe may be closed; the command continues
            while not ended.wait(EVERY):
                if shown and not console.quiet:
                    errors.print(f"{shown} ({time.monotonic() - start:.0f} s)")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield change
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def progress_of(name: str) -> Generator[Callable[[int, int], None]]:
    """Show the progress of a command, and yield a function that sets the numbers of finished items and of all items.

    On a terminal it is a progress bar, otherwise `progress_lines`.
    """
    if not console.is_terminal:
        with progress_lines() as change:
            yield lambda done, total: change(f"{name}: {done:,} of {total:,}")
        return
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def progress_bar(name: str, total: int) -> Generator[Callable[[int], None]]:
    """Show the progress of a command as `progress_of`, and yield a function that adds a number of finished items."""
    done = 0
    with progress_of(name) as update:
        update(done, total)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            update(done, total)

        yield advance


@contextlib.contextmanager
def status_line() -> Generator[Callable[[str], None]]:
    """Show what a long command is doing, and yield a function that changes this text.

    On a terminal, the text stands beside a spinner. Otherwise each text is a line on standard error, which is repeated
    by `progress_lines`.
    """
    if console.is_terminal:
        with console.status("") as status:
            yield status.update
        return
    with progress_lines() as change:

        def show(text: str) -> None:
            errors.print(text)
            change(text)

        yield show


def draw_figure(path: Path, draw: Callable[[Path], None]) -> None:
    """Draw a figure and print its path; without matplotlib, print how to install it instead."""
    try:
        draw(path)
    except LinfnetError as error:
        console.print(f"no figure: {error}")
    else:
        console.print(f"figure: {path}")


def percent(share: float | None) -> str:
    """Format a fraction in [0, 1] as a percentage; None becomes an empty string.

    >>> percent(0.4006)
    '40.06'
    """
    return "" if share is None else f"{100 * share:.2f}"


def is_narrow() -> bool:
    """Return whether the terminal is narrower than 80 columns; long tables then leave out columns."""
    return console.width < 80


def print_table(table: Table) -> None:
    """Print a table that fits the width of the terminal: cells are broken into lines, nothing is cut off."""
    console.print(table, soft_wrap=False)


def titled_table(title: str | None, words: Sequence[str], numbers: Sequence[str] = (), **options: Any) -> Table:
    """Return an empty table with columns of words and right-justified columns of numbers.

    `options` are passed to `rich.table.Table`.
    """
    table = Table(title=title, title_justify="left", **options)
    for name in words:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def results_table(title: str, rows: Sequence[tuple[str, Result]]) -> Table:
    """Return a table of clean, attacked and certified accuracy in percent, with one row for each net and epsilon."""
    certificates = list(dict.fromkeys(name for _, result in rows for name in result.certified))
    exact = ("exact",) if any(result.exact for _, result in rows) else ()
    numbers = ("clean", str(rows[0][1].attack), *exact, *(f"certified ({name})" for name in certificates))
    table = titled_table(title, ("net", "eps"), numbers)
    for net, result in rows:
        decided = [result.exact.robust if result.exact else None] if exact else []
        shares = (result.clean, result.attacked, *decided, *(result.certified.get(name) for name in certificates))
        table.add_row(net, format_epsilon(result.eps), *map(percent, shares))
    promises = dict.fromkeys((net, result.guarantee) for net, result in rows)
    if len({text for _, text in promises}) == 1:
        lines = [f"certified: {rows[0][1].guarantee}"]
    else:
        lines = [f"{net}: certified, {text}" for net, text in promises]
    open_ = [(result.eps, result.exact.undecided) for _, result in rows if result.exact and result.exact.undecided]
    lines += [f"undecided at {format_epsilon(eps)}: {percent(share)} %" for eps, share in open_]
    table.caption = "\n".join(lines) or None
    return table
