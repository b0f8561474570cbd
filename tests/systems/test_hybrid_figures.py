"""What the notes say of the net + MLP after 125 epochs is what the records hold, and what follows from them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from linfnet.recipes import recipe_from_toml
from linfnet.reproduce.run_plots import read_events

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
PROSE = " ".join(TEXT.split())
SMALL = {
    "16 epochs, width 256": ("16-101-8-seed-0", "16-101-8-seed-1"),
    "16 epochs, width 256, p snapped": ("16-101-8-snapped-seed-0", "16-101-8-snapped-seed-1"),
    "62 epochs, width 256": ("62-55-8-seed-0", "62-55-8-seed-1"),
    "62 epochs, width 256, `eps_train` at its end after 16": ("62-55-8-eps-in-16",),
    "16 epochs, width 128, batches of 103": ("98-steps-16-101-8",),
    "62 epochs, width 128, batches of 103": ("98-steps-62-55-8",),
}


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "records" / f"cifar10-8-{name}.json").read_text())


def measured(run: dict[str, Any]) -> dict[str, Any]:
    return run["results"]["cifar10-test eps=8/255"]


def first_phase(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The epochs with p at its start."""
    log = read_events(ROOT / "records" / run["events"])
    return [event for event in log if event["event"] == "epoch"][: run["epochs"][0]]


def small_runs(what: str) -> list[dict[str, Any]]:
    return [record(f"hybrid-small-{name}") for name in SMALL[what]]


def certified(what: str) -> list[float]:
    """In percent, one for each seed."""
    return [100 * measured(run)["certified_interval"] for run in small_runs(what)]


def differences(more: str, less: str) -> list[str]:
    return [f"{a - b:.2f}" for a, b in zip(certified(more), certified(less), strict=True)]


def missed(run: dict[str, Any], certificate: str) -> tuple[str, str]:
    """By how many points a run is below the published figures, certified and clean."""
    reported = recipe_from_toml(run["recipe"], "recipe", "recipe").reported
    assert reported is not None
    assert reported.certified is not None
    assert reported.clean is not None
    found = measured(run)
    return f"{reported.certified - 100 * found[certificate]:.2f}", f"{reported.clean - 100 * found['clean']:.2f}"


def test_full_size() -> None:
    hybrid, old = record("hybrid-125-epochs"), record("2021-125-epochs")
    certified, clean = missed(hybrid, "certified_interval")
    assert f"it misses {certified} points certified and {clean} clean" in PROSE
    assert "the training of 2021 {} and {}".format(*missed(old, "certified_margin")) in PROSE
    fitted = [f"{100 * run['results']['train']['training_images']['certified']['8/255']:.2f}" for run in (hybrid, old)]
    assert f"({fitted[0]} % certified, the training of 2021 {fitted[1]})" in PROSE
    apart = 100 * (measured(old)["certified_margin"] - measured(hybrid)["certified_interval"])
    assert f"it ends {apart:.2f} below the training of 2021" in PROSE
    phase = first_phase(hybrid)
    losses = [event["loss"] for event in phase]
    assert losses == sorted(losses, reverse=True)
    steps = phase[-1]["step"]
    assert f"{steps} steps, and the loss falls throughout, from {losses[0]:.2f} to {losses[-1]:.2f}" in PROSE


@pytest.mark.parametrize("what", SMALL)
def test_small_nets(what: str) -> None:
    runs = small_runs(what)
    (steps,) = {first_phase(run)[-1]["step"] for run in runs}
    shares = ("clean", "pgd", "certified_interval")
    shown = [", ".join(f"{100 * measured(run)[share]:.2f}" for run in runs) for share in shares]
    assert f"| {what} | {steps} | {' | '.join(shown)} |" in TEXT


def test_what_follows_from_the_small_nets() -> None:
    stalled = " and ".join(f"{first_phase(run)[-1]['loss']:.2f}" for run in small_runs("16 epochs, width 256"))
    assert f"(loss {stalled} when the phase ends, where guessing has {math.log(10):.2f})" in PROSE
    (by_steps,) = differences("62 epochs, width 128, batches of 103", "16 epochs, width 128, batches of 103")
    by_epochs = " and ".join(differences("62 epochs, width 256", "16 epochs, width 256"))
    assert f"a small net gains {by_steps} points by the longer phase, not {by_epochs}." in PROSE
    first, second = differences("16 epochs, width 256", "16 epochs, width 256, p snapped")
    assert abs(float(first)) < 0.05
    assert f"Snapping p costs a small net nothing with seed 0 and {second} points with seed 1." in PROSE


def test_the_authors_scripts() -> None:
    theirs = record("hybrid-small-authors")
    assert f"| 320 | {100 * theirs['clean']:.2f} | – | {100 * theirs['certified']:.2f} |" in TEXT
    assert 100 * theirs["certified"] < min(certified("16 epochs, width 256"))
