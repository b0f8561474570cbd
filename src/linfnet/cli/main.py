"""The command line: `linfnet COMMAND`. A user's mistake is one line on standard error and exit code 2."""

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from linfnet.cli.attack import Attack
from linfnet.cli.certify import Certify
from linfnet.cli.compare import Compare
from linfnet.cli.data import Fetch, List, Verify
from linfnet.cli.demo import Demo
from linfnet.cli.doctor import Doctor
from linfnet.cli.evaluate import Evaluate
from linfnet.cli.export import Export
from linfnet.cli.lipschitz import Lipschitz
from linfnet.cli.plot import Plot
from linfnet.cli.predict import Predict
from linfnet.cli.report import Report
from linfnet.cli.reproduce import Reproduce
from linfnet.cli.serve import Serve
from linfnet.cli.theory import Construct, Separate
from linfnet.cli.train import Recipes, Train
from linfnet.cli.watch import Watch
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.train import StoppedError
from linfnet.version import __version__


@dataclass(frozen=True)
class Data:
    """Fetch, list and verify data sets."""

    action: (
        Annotated[Fetch, subcommand("fetch")]
        | Annotated[List, subcommand("list")]
        | Annotated[Verify, subcommand("verify")]
    )

    def run(self) -> int:
        """Run the chosen action."""
        return self.action.run()


Command = OmitSubcommandPrefixes[
    Annotated[Train, subcommand("train")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Certify, subcommand("certify")]
    | Annotated[Attack, subcommand("attack")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Predict, subcommand("predict")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Serve, subcommand("serve")]
    | Annotated[Plot, subcommand("plot")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Watch, subcommand("watch")]
    | Annotated[Recipes, subcommand("recipes")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Separate, subcommand("separation")]
    | Annotated[Construct, subcommand("construct")]
    | Annotated[Lipschitz, subcommand("lipschitz")]
    | Annotated[Doctor, subcommand("doctor")]
    | Annotated[Demo, subcommand("demo")]
]

DESCRIPTION = "l-infinity distance nets: neural networks whose robustness one forward pass proves."


class Runnable(Protocol):
    """A command that is ready to run."""

    def run(self) -> int:
        """Do the work; the exit code."""
        ...


def _parse(arguments: list[str]) -> Runnable:
    """The command that the arguments name; what the parser has to complain of becomes one line, too."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(Command, prog="linfnet", description=DESCRIPTION, args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = (line.strip("╭╮╰╯│─+|- \n") for line in told.getvalue().splitlines())
        words = [line for line in lines if line]
        raise ArgumentError("; ".join(words[1:]) or "the arguments are not understood; see linfnet --help") from None


def _tell(line: str) -> None:
    """A line on standard error, if there still is one: a closed terminal must not change the exit code."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")


def _refuse(reason: str) -> int:
    """One line, even where a file name breaks it."""
    _tell(f"error: {' '.join(reason.splitlines())}")
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a mistake, 130 for a run that was asked to stop."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be text
    if arguments == ["--version"]:
        sys.stdout.write(f"linfnet {__version__}\n")
        return 0
    try:
        return _parse(arguments).run()
    except StoppedError as error:
        _tell(str(error))
        return 130
    except LinfnetError as error:
        return _refuse(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _refuse(f"{where}{error.strerror or error}")
    except KeyboardInterrupt:
        _tell("interrupted")
        return 130
