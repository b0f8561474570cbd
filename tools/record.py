"""Save a finished run as a record: one JSON file with results and environment, and the compressed event log.

    python tools/record.py RUN --out records/NAME.json

The tables of README and docs are generated from records: see generate_docs.py.
"""

import gzip
import itertools
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, replacing, write_json
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.reproduce.outcome import hardware_of, resumptions
from linfnet.reproduce.plots import AUTHORS_CURVE, comparable_epochs
from linfnet.results import read_results
from linfnet.results.storage import RESULTS_FILE
from linfnet.train import RunFolder


@dataclass(frozen=True)
class Record:
    """Save a finished run as a record: a JSON file with results and environment, and the compressed event log."""

    run_folder: tyro.conf.Positional[Path]
    """The folder of a finished run. Evaluate the run first if the record should contain its accuracies."""
    out: Path
    """The file to write, NAME.json; the event log is written to NAME.events.jsonl.gz."""
    what: str = ""
    """A sentence about the run. The default is the title of its recipe."""
    commit: str | None = None
    """The commit of the source, for runs that were not started from a git checkout."""
    replace: bool = False
    """Overwrite an existing record."""

    def run(self) -> None:
        """Write both files and print their paths."""
        log = write_record(self.run_folder, self.out, what=self.what, commit=self.commit, replace=self.replace)
        sys.stdout.write(f"record: {self.out}, {log}\n")
        recipe, results = RunFolder.open(self.run_folder).recipe, read_results(self.run_folder)
        if results.find(recipe.data.name, recipe.evaluation.eps[0]) is None:
            command = ["linfnet", "evaluate", str(self.run_folder), "--steps", "100"]
            sys.stdout.write(f"PGD-100 on all test images is missing: run {shlex.join(command)}\n")


def write_record(path: Path, out: Path, *, what: str = "", commit: str | None = None, replace: bool = False) -> Path:
    """Write `NAME.json` and `NAME.events.jsonl.gz`; return the path of the latter."""
    if out.suffix != ".json":
        raise ArgumentError(f"--out is {str(out)!r}; expected a file name that ends in .json")
    if out.exists() and not replace:
        raise ArgumentError(f"{out} exists; use --replace to overwrite it")
    log = out.with_name(f"{out.stem}.events.jsonl.gz")
    record = make_record(path, what, log.name, commit)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Write both files or none. With mtime=0 the compressed file depends only on the log.
    with replacing(log) as temporary:
        temporary.write_bytes(gzip.compress((path / "events.jsonl").read_bytes(), mtime=0))
        write_json(out, record)
    return log


def make_record(path: Path, what: str, events_file: str, commit: str | None = None) -> dict[str, Any]:
    """Return the contents of the record of a finished run.

    Args:
        path: the run folder.
        what: a sentence about the run; empty for the title of its recipe.
        events_file: the name of the compressed event log next to the record.
        commit: the commit of the source, for a run that was not started from a git checkout.
    """
    folder = RunFolder.open(path)
    events = folder.events()
    # Check the log, because the weights of large nets may remain on the machine that trained them.
    if not any(event["event"] == "finish" for event in events):
        raise LinfnetError(f"{path} has not finished; resume it by linfnet train --resume {shlex.quote(str(path))}")
    environment, training, recipe = read_table(path / "env.json"), read_results(path).training, folder.recipe
    if commit is not None:
        if environment.get("commit") not in (None, commit):
            raise ArgumentError(f"--commit is {commit!r}, but env.json of the run has {environment['commit']!r}")
        environment |= {"commit": commit, "commit_given_by_hand": True}
    if training is None:
        raise LinfnetError(f"{path / RESULTS_FILE} contains no results of training")
    resumed, compared = resumptions(events), compare_with_authors(recipe, events)
    return {
        "what": what or recipe.title,
        "seed": recipe.run.seed,
        "epochs": list(recipe.schedule.epochs),
        "hardware": hardware_of(environment, training.device, events),
        "seconds": training.seconds,
        **({} if training.cpu_seconds is None else {"cpu_seconds": training.cpu_seconds}),
        "seconds_per_epoch": seconds_per_epoch(recipe, events),
        "environment": environment,
        **({"resumed": resumed} if resumed else {}),
        "recipe": recipe_to_toml(recipe),
        "results": read_table(path / RESULTS_FILE),
        **({"beside_the_authors_curve": compared} if compared else {}),
        "events": events_file,
    }


def seconds_per_epoch(recipe: Recipe, events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of an epoch in each phase of the schedule, from the times at which the epochs ended."""
    ends = {event["epoch"]: float(event["seconds"]) for event in events if event["event"] == "epoch"}
    ends[0] = 0.0
    borders = [0, *itertools.accumulate(recipe.schedule.epochs)]
    phases = zip(("p_start", "rise", "infinite"), itertools.pairwise(borders), strict=True)
    return {
        name: round((ends[last] - ends[first]) / (last - first), 3)
        for name, (first, last) in phases
        if last > first and first in ends and last in ends
    }


def compare_with_authors(recipe: Recipe, events: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return metrics of our epochs and of the authors' run; an empty list if the runs are not comparable."""
    last = comparable_epochs(recipe)
    ours = {event["epoch"]: event for event in events if event["event"] == "epoch"}
    rows: list[dict[str, float]] = []
    for point in AUTHORS_CURVE:
        if point.epoch > last or point.epoch not in ours:
            continue
        row: dict[str, float] = {"epoch": point.epoch}
        for name in ("loss", "accuracy", "above", "scale"):
            value = float(ours[point.epoch][name])
            row |= {name: value, f"{name}_authors": getattr(point, name)}
        rows.append({**row, "loss_difference": round(row["loss"] - point.loss, 4)})
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the tool and return the exit code: 0, or 2 for a user error."""
    try:
        tyro.cli(Record, description=__doc__, args=arguments).run()
    except (LinfnetError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
