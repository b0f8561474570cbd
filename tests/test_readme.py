"""The README's Python runs, its commands exist; its figures, and those of the notes, are those of the records."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from linfnet.reproduce.record import readme_row

from linfnet.cli.main import main
from linfnet.recipes import recipe_from_toml

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "records"
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = re.findall(r"^\|.*\(records/\S+\.json\) \|$", README, re.MULTILINE)


def test_the_python_example_runs():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(block.strip().splitlines()) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    assert re.search(r"radius 0\.\d+ \(median\), \d+\.\d% right and certified", printed.getvalue())


def test_every_command_has_help(capsys):
    commands = {line.split()[0] for line in re.findall(r"`linfnet ([^`]*)`", README)}
    assert {"train", "evaluate", "predict", "recipes", "data", "doctor", "demo"} <= commands
    for command in sorted(commands):
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
        assert f"usage: linfnet {command}" in capsys.readouterr().out


def tables(record: Any) -> Iterator[dict[str, Any]]:
    """All dictionaries of a record."""
    if isinstance(record, dict):
        yield record
        for value in record.values():
            yield from tables(value)


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_there_are_results():
    assert len(RESULTS) >= 3


@pytest.mark.parametrize("row", RESULTS, ids=lambda row: re.findall(r"records/(\S+)\.json", row)[0])
def test_results_are_those_of_the_record(row: str):
    what, *figures, paper, link = cells(row)
    record = json.loads((ROOT / re.findall(r"\((records/\S+)\)", link)[0]).read_text())
    for table in tables(record):
        certified = [table.get(f"certified_{name}") for name in ("margin", "interval")]
        measured = [(table.get("clean"), table.get("pgd"), share) for share in certified]
        shown = [[f"{100 * value:.2f}" for value in values] for values in measured if None not in values]
        if figures in shown:
            break
    else:
        pytest.fail(f"{link} has no evaluation with {figures}")
    if "events" not in record:  # no record of a run
        return
    assert cells(readme_row(record, link.split("]")[0][1:]))[1:-1] == [*figures, paper]
    recipe = recipe_from_toml(record["recipe"], link, link)
    epochs = recipe.schedule.epochs
    assert f"{sum(epochs)} epochs ({'/'.join(map(str, epochs))})" in what
    assert f"seed {record['seed']}, {record['seconds']:.0f} s on {record['hardware']}" in what
    assert ("p snapped" in what) == recipe.schedule.snap_p


def measured_rows(page: str) -> list[list[str]]:
    """The cells of the first table under the heading Measured, without its head."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split("## Measured")[1]
    return [cells(row) for row in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)[0].splitlines()[2:]]


def figures_of(record: dict[str, Any], eps: str) -> Iterator[tuple[str, str, str, float, int]]:
    """Clean, attacked and certified accuracy, the price of a proof and the steps, of each evaluation at an epsilon."""
    for key, entry in record["results"].items():
        if key.endswith(f" eps={eps}"):
            for name, seconds in entry["certify_seconds_per_image"].items():
                clean, pgd, held = (f"{100 * entry[share]:.2f}" for share in ("clean", "pgd", f"certified_{name}"))
                yield clean, pgd, held, seconds, entry["pgd_steps"]


def test_figures_of_other_systems_are_those_of_their_records():
    rows = measured_rows("systems.md")
    assert len(rows) >= 8
    record: dict[str, Any] = {}
    for what, clean, attacked, certified, price, source in rows:
        if source != "the same":
            record = json.loads((ROOT / source.strip("`")).read_text())
        (*_, eps), digits = re.findall(r"at (0\.\d+|\d+/255)", what), len(price.lstrip("0."))
        shown = (clean, attacked.split()[0], certified, float(price))
        steps = [
            steps
            for *shares, seconds, steps in figures_of(record, eps)
            if (*shares, float(f"{seconds:.{digits}g}")) == shown
        ]
        assert steps, f"no evaluation in the record has the figures of {what!r}"
        assert attacked.split()[1:] in ([], *([f"(PGD-{each})"] for each in steps))
        for epochs in re.findall(r"(\d+) epochs", what):
            assert int(epochs) == sum(record["epochs"])


def test_smoothing_is_not_said_to_be_ahead_where_it_is_behind():
    prose = " ".join((ROOT / "docs" / "systems.md").read_text(encoding="utf-8").split())
    ours = json.loads((RECORDS / "cifar10-2-200-epochs.json").read_text())["results"]["cifar10-test eps=2/255"]
    smoothed = json.loads((RECORDS / "cifar10-smoothing-0.25.json").read_text())["results"]
    certified = smoothed["cifar10-test-first-500-pgd-20 eps=2/255"]["certified_smoothing"]
    assert f"it is behind ({100 * certified:.2f} and {100 * ours['certified_margin']:.2f} %" in prose
    assert certified < ours["certified_margin"]


def told(spread: dict[str, float]) -> str:
    """The median and the range over the seeds."""
    return f"{100 * spread['median']:.2f} ({100 * spread['lowest']:.1f}–{100 * spread['highest']:.1f})"


def test_figures_of_the_small_ablation_are_those_of_its_record():
    record = json.loads((RECORDS / "ablation-small.json").read_text())
    names = ("clean", "certified_margin", "certified_train")
    found = [[cell["label"], *(told(cell["spread"][name]) for name in names)] for cell in record["cells"]]
    assert [row[:4] for row in measured_rows("ablations.md")] == found
    published = [f"{cell['paper']['clean']:.2f} / {cell['paper']['certified']:.2f}" for cell in record["cells"]]
    assert [row[4] for row in measured_rows("ablations.md")] == published
