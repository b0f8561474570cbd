"""Read the files in records/ and format tables."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.recipes import Recipe, load_recipe, recipe_from_toml
from linfnet.reproduce.plots import read_events
from linfnet.results import Result, Results, results_from_json

RECORDS = Path(__file__).parent.parent / "records"


def read_record(name: str) -> dict[str, Any]:
    """Return the contents of records/NAME.json."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of records/NAME.jsonl."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class RunRecord:
    """The record of a training run."""

    name: str
    record: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> "RunRecord":
        """Read records/NAME.json."""
        return cls(name, read_record(name))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with all changes."""
        return recipe_from_toml(self.record["recipe"], self.name, self.name)

    @property
    def results(self) -> Results:
        """The measured results of the run."""
        return results_from_json(self.record["results"])

    @property
    def result(self) -> Result:
        """The evaluation at the first epsilon of the recipe, PGD-100 on all test images."""
        found = self.main_result
        if found is None:
            eps = format_epsilon(self.recipe.evaluation.eps[0])
            raise LookupError(f"{self.name} has no evaluation of all test images at {eps} by PGD-100")
        return found

    @property
    def main_result(self) -> Result | None:
        """The same as `result`, or None if it was not measured."""
        return self.results.find(self.recipe.data.name, self.recipe.evaluation.eps[0])

    @property
    def variant(self) -> str:
        """Whether p was snapped, whether training used float16, and the seed."""
        snapped, half = ", p snapped" * self.recipe.schedule.snap_p, ", float16" * bool(self.recipe.run.float16)
        return f"{snapped}{half}, seed {self.record['seed']}"

    def epochs(self) -> list[dict[str, Any]]:
        """Return the epoch events of the log, with the duration of the epoch as `seconds` and p as a float."""
        log = [event for event in read_events(RECORDS / self.record["events"]) if event["event"] == "epoch"]
        ends = [0.0, *(event["seconds"] for event in log)]
        durations = (end - start for start, end in itertools.pairwise(ends))
        return [
            {**event, "p": float(event["p"]), "seconds": seconds} for event, seconds in zip(log, durations, strict=True)
        ]


def published(recipe: Recipe, result: Result) -> str:
    """Return the certified accuracy of the published row for a result, or a dash if there is none."""
    reported = recipe.reported
    # The published row belongs to the epsilon of the packaged recipe; the recipe of the run may have a different one.
    if reported.source != "the paper" or result.eps != load_recipe(recipe.name).evaluation.eps[0]:
        return "–"
    return f"{reported.certified:.2f}"


def percent(share: float | None) -> str:
    """Return a fraction as a percentage with two decimals, without the percent sign; a dash for None."""
    return "–" if share is None else f"{100 * share:.2f}"


def link(name: str) -> str:
    """Return a link to a file in records/."""
    return f"[{name}](records/{name})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns are right-aligned where all their cells are numbers."""
    rows = list(rows)
    numeric = [all(_is_number(row[k]) for row in rows) for k in range(len(head))]
    ruler = ["---:" if number else "---" for number in numeric]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ruler, *rows))


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789.,–∞ ")
