"""The command line: `linfnet COMMAND`. A user's mistake is one line on standard error and exit code 2."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from linfnet.cli.attack import Attack
from linfnet.cli.certify import Certify
from linfnet.cli.data import Fetch, List, Verify
from linfnet.cli.demo import Demo
from linfnet.cli.doctor import Doctor
from linfnet.cli.evaluate import Evaluate
from linfnet.cli.export import Export
from linfnet.cli.predict import Predict
from linfnet.cli.train import Recipes, Train
from linfnet.errors import LinfnetError
from linfnet.train import StoppedError


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
    | Annotated[Predict, subcommand("predict")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Recipes, subcommand("recipes")]
    | Annotated[Data, subcommand("data")]
    | Annotated[Doctor, subcommand("doctor")]
    | Annotated[Demo, subcommand("demo")]
]

DESCRIPTION = "l-infinity distance nets: neural networks whose robustness one forward pass proves."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a mistake, 130 for a run that was asked to stop."""
    command = tyro.cli(Command, prog="linfnet", description=DESCRIPTION, args=arguments)
    try:
        return command.run()
    except StoppedError as error:
        sys.stderr.write(f"{error}\n")
        return 130
    except LinfnetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
