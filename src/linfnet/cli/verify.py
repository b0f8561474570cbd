"""`linfnet verify`: which files of a run or model are intact."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from linfnet.cli.console import console, errors
from linfnet.nn.model_path import find_model
from linfnet.train.run_folder import find_leftovers
from linfnet.verification import verify_folder


@dataclass(frozen=True)
class Verify:
    """Check that the files of a run or model are intact: that they match the digests that were written with them.

    The exit status is 2 if a file is damaged or missing. Model cards and CSV files have no digest. `linfnet search`
    deletes the weights of its trials, which are not missing then.

    Examples:
        linfnet verify runs/first
        linfnet verify mnist-small
    """

    model: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="RUN|MODEL", help="A run, a model folder, the name of a packaged model, or hf://user/name."
        ),
    ]

    def run(self) -> int:
        """Print a line for each file; return 2 if any is damaged or missing."""
        folder = find_model(self.model)
        states = verify_folder(folder)
        for state in states:
            name = state.file.relative_to(folder)
            if state.problem:
                errors.print(state.problem)
            elif state.deleted:
                console.print(f"deleted by linfnet search after training: {name}")
            else:
                console.print(f"intact: {name}" if state.has_digest else f"readable, but without a digest: {name}")
        for file in find_leftovers(folder):
            console.print(f"temporary, of a process that writes now or was killed: {file.relative_to(folder)}")
        return 2 if any(state.problem for state in states) else 0
