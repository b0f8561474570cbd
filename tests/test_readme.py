"""The README's Python runs, its commands exist; its figures, and those of the notes, are those of the records."""

import contextlib
import gzip
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linfnet.cli.main import main
from linfnet.recipes import recipe_from_toml
from linfnet.reproduce.record import readme_row

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
    record = json.loads((ROOT / "records" / "ablation-small.json").read_text())
    names = ("clean", "certified_margin", "certified_train")
    found = [[cell["label"], *(told(cell["spread"][name]) for name in names)] for cell in record["cells"]]
    assert [row[:4] for row in measured_rows("ablations.md")] == found
    published = [f"{cell['paper']['clean']:.2f} / {cell['paper']['certified']:.2f}" for cell in record["cells"]]
    assert [row[4] for row in measured_rows("ablations.md")] == published


def test_why_the_hybrid_falls_behind_is_as_recorded():
    text = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    prose = " ".join(text.split())
    hybrid, old = (
        json.loads((ROOT / "records" / f"cifar10-8-{name}-125-epochs.json").read_text()) for name in ("hybrid", "2021")
    )

    def missed(run: dict[str, Any], certified: str) -> tuple[str, str]:
        measured = run["results"]["cifar10-test eps=8/255"]
        reported = recipe_from_toml(run["recipe"], "recipe", "recipe").reported
        assert reported is not None
        shown = ((reported.certified, certified), (reported.clean, "clean"))
        first, second = (f"{paper - 100 * measured[share]:.2f}" for paper, share in shown if paper is not None)
        return first, second

    certified, clean = missed(hybrid, "certified_interval")
    assert f"it misses {certified} points certified and {clean} clean" in prose
    assert "the training of 2021 {} and {}".format(*missed(old, "certified_margin")) in prose
    fitted = [f"{100 * run['results']['train']['training_images']['certified']['8/255']:.2f}" for run in (hybrid, old)]
    assert f"({fitted[0]} % certified, the training of 2021 {fitted[1]})" in prose
    small = {
        "16 epochs, width 256": ["16-101-8-seed-0", "16-101-8-seed-1"],
        "16 epochs, width 256, p snapped": ["16-101-8-snapped-seed-0", "16-101-8-snapped-seed-1"],
        "62 epochs, width 256": ["62-55-8-seed-0", "62-55-8-seed-1"],
        "62 epochs, width 256, `eps_train` at its end after 16": ["62-55-8-eps-in-16"],
        "16 epochs, width 128, batches of 103": ["98-steps-16-101-8"],
        "62 epochs, width 128, batches of 103": ["98-steps-62-55-8"],
    }
    losses: dict[str, list[float]] = {}
    certified_by: dict[str, list[float]] = {}
    for what, names in small.items():
        runs = [json.loads((RECORDS / f"cifar10-8-hybrid-small-{name}.json").read_text()) for name in names]
        entries = [run["results"]["cifar10-test eps=8/255"] for run in runs]
        ends = [end_of_first_phase(run) for run in runs]
        shown = [
            ", ".join(f"{100 * entry[share]:.2f}" for entry in entries)
            for share in ("clean", "pgd", "certified_interval")
        ]
        assert f"| {what} | {ends[0]['step']} | {' | '.join(shown)} |" in text
        losses[what] = [end["loss"] for end in ends]
        certified_by[what] = [entry["certified_interval"] for entry in entries]
    stalled = " and ".join(f"{loss:.2f}" for loss in losses["16 epochs, width 256"])
    assert f"(loss {stalled} when the phase ends, where guessing has {math.log(10):.2f})" in prose
    begun, ended = epochs_of(hybrid)[0], end_of_first_phase(hybrid)
    assert (
        f"{ended['step']} steps, and the loss falls throughout, from {begun['loss']:.2f} to {ended['loss']:.2f}"
        in prose
    )
    phase = [event["loss"] for event in epochs_of(hybrid)[: hybrid["epochs"][0]]]
    assert phase == sorted(phase, reverse=True)

    def gains(width: str) -> str:
        pairs = zip(certified_by[f"62 epochs, {width}"], certified_by[f"16 epochs, {width}"], strict=True)
        return " and ".join(f"{100 * (long - short):.2f}" for long, short in pairs)

    by_steps, by_epochs = gains("width 128, batches of 103"), gains("width 256")
    assert f"a small net gains {by_steps} points by the longer phase, not {by_epochs}." in prose
    exact, snapped = (certified_by[f"16 epochs, width 256{how}"] for how in ("", ", p snapped"))
    costs = [100 * (before - after) for before, after in zip(exact, snapped, strict=True)]
    assert -0.05 < costs[0] < 0.05
    assert f"Snapping p costs a small net nothing with seed 0 and {costs[1]:.2f} points with seed 1." in prose
    theirs = json.loads((RECORDS / "cifar10-8-hybrid-small-authors.json").read_text())
    assert f"| {100 * theirs['clean']:.2f} | – | {100 * theirs['certified']:.2f} |" in text


def epochs_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The epochs in the event log of a run's record."""
    with gzip.open(RECORDS / record["events"], "rt", encoding="utf-8") as log:
        return [event for event in map(json.loads, log) if event["event"] == "epoch"]


def end_of_first_phase(record: dict[str, Any]) -> dict[str, Any]:
    """The last epoch of a run with p at its start."""
    return epochs_of(record)[record["epochs"][0] - 1]
