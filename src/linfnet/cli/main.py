"""The command line: `linfnet COMMAND`. An error of the user prints one line on standard error and exits with 2."""

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
    """A parsed command; `run` returns an exit code other than 0, or nothing."""

    def run(self) -> int | None: ...


def _parse(arguments: list[str]) -> Runnable:
    """Parse the arguments; an error of the parser becomes one line as well."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return tyro.cli(Command, prog="linfnet", description=DESCRIPTION, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        # The parser draws a box around its message, which ends with the help text of the argument.
        lines = [text for line in message.getvalue().splitlines() if (text := line.strip("╭╮╰╯│─+|- "))]
        text = "; ".join(lines[1:]).partition("; Argument helptext")[0]
        raise ArgumentError(text or "the arguments cannot be parsed; see linfnet --help") from None


def _print_error(line: str) -> None:
    """Print on standard error as one line, even if a file name contains a line break."""
    with contextlib.suppress(OSError):  # a closed terminal must not change the exit code
        sys.stderr.write(f"{' '.join(line.splitlines())}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, 2 after an error of the user, or 130 after an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8
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
