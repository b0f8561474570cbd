"""The command line `linfnet COMMAND`. A user error prints one line on standard error and exits with status 2."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Protocol

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from linfnet.cli.certify import Attack, Certify, Predict
from linfnet.cli.data import Data, Doctor
from linfnet.cli.evaluate import Compare, Demo, Evaluate
from linfnet.cli.export import Export, Serve
from linfnet.cli.report import Plot, Report, Watch
from linfnet.cli.reproduce import Reproduce
from linfnet.cli.theory import Construct, Lipschitz, Separate
from linfnet.cli.train import Recipes, Train
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.train import StoppedError
from linfnet.version import __version__

Command = OmitSubcommandPrefixes[
    Train
    | Evaluate
    | Certify
    | Attack
    | Compare
    | Predict
    | Export
    | Serve
    | Plot
    | Reproduce
    | Report
    | Watch
    | Recipes
    | Data
    | Annotated[Separate, subcommand("separation")]
    | Construct
    | Lipschitz
    | Doctor
    | Demo
]

DESCRIPTION = "l-infinity distance nets: neural networks whose robustness is certified by one forward pass."


class Runnable(Protocol):
    """A parsed command; `run` returns an exit status, or None for 0."""

    def run(self) -> int | None: ...


def _parse(arguments: list[str]) -> Runnable:
    """Parse the arguments; an error message of the parser is shortened to one line."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(Command, prog="linfnet", description=DESCRIPTION, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        # The parser draws a box around its message. The help text of the argument follows the message.
        lines = [text for line in message.getvalue().splitlines() if (text := line.strip("╭╮╰╯│─+|- "))]
        text = "; ".join(lines[1:]).partition("; Argument helptext")[0]
        raise ArgumentError(text or "the arguments cannot be parsed; see linfnet --help") from None


def _print_error(line: str) -> None:
    """Print a message on standard error as one line, even if a file name contains a line break."""
    with contextlib.suppress(OSError):  # a closed terminal must not change the exit status
        sys.stderr.write(f"{' '.join(line.splitlines())}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 on success, 2 after a user error, and 130 after an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may contain bytes that are not UTF-8
    if arguments == ["--version"]:
        sys.stdout.write(f"linfnet {__version__}\n")
        return 0
    try:
        return _parse(arguments).run() or 0
    except (StoppedError, KeyboardInterrupt) as error:
        _print_error(str(error) or "interrupted")
        return 130
    except LinfnetError as error:
        _print_error(f"error: {error}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"error: {where}{error.strerror or error}")
    return 2
