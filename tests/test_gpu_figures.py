"""What README and notes say of the GPU kernels' speed is what the records hold, and what follows from them."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from linfnet.reproduce.run_plots import read_events

ROOT = Path(__file__).parent.parent
README, NOTES = (
    " ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in ("README.md", "docs/gpu-kernels.md")
)
OURS, EAGER, AUTHORS = "linfnet", "linfnet, eager", "authors"
# Steps of an epoch: 50,000 images in batches of 512.
STEPS = math.ceil(50_000 / 512)


def newest_rows() -> dict[tuple[str, float], dict[str, float | str]]:
    """For each p, those of the last commit at which all three were measured."""
    rows = map(json.loads, (ROOT / "records" / "train_step.jsonl").read_text().splitlines())
    measured: dict[tuple[str, float], dict[str, dict[str, float | str]]] = {}
    for row in rows:
        measured.setdefault((row["commit"], float(row["p"])), {})[row["kernels"]] = row
    complete = {p: kinds for (_, p), kinds in measured.items() if {OURS, EAGER, AUTHORS} <= set(kinds)}
    return {(kernels, p): row for p, kinds in complete.items() for kernels, row in kinds.items()}


ROWS = newest_rows()


def ms(kernels: str, p: float) -> float:
    return float(ROWS[kernels, p]["step_ms"])


def table() -> dict[str, list[str]]:
    """The notes' table of training steps, by the first cell of each row."""
    text = (ROOT / "docs" / "gpu-kernels.md").read_text(encoding="utf-8").split("Training steps against")[1]
    rows = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)[0].splitlines()
    return {first: rest for first, *rest in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)}


POWERS = [float(p) for p in table()["p"]]


def is_rounded(shown: str, value: float) -> bool:
    """Whether a figure is a value with fewer digits; halves go either way."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown) - value) <= 0.5 * 10**-digits + 1e-9


def test_the_table_of_steps_is_that_of_the_records() -> None:
    shown = table()
    assert {8, 12, 28, 64, 112, 224, 512, math.inf} <= set(POWERS)
    for name, kernels in (("ours", OURS), ("ours without graphs", EAGER), ("the authors'", AUTHORS)):
        assert all(is_rounded(figure, ms(kernels, p)) for figure, p in zip(shown[name], POWERS, strict=True)), name
    for ratio, p in zip(shown["ratio"], POWERS, strict=True):
        assert is_rounded(ratio, ms(AUTHORS, p) / ms(OURS, p)), p


@pytest.mark.parametrize("p", POWERS)
def test_ours_and_theirs_are_of_one_run(p: float) -> None:
    ours, eager, theirs = (ROWS[kernels, p] for kernels in (OURS, EAGER, AUTHORS))
    for key in ("date", "gpu", "driver", "torch", "commit", "state"):
        assert ours[key] == eager[key] == theirs[key]
    assert ours["gpu"] == "NVIDIA H200"
    assert (ours["state"] == "initial") == (p <= 12 or math.isinf(p))


@pytest.mark.parametrize(
    ("powers", "least"),
    [((8,), 1.7), ((12, 28), 2.3), ((64, 112), 2.5), ((224, 512), 3.5), ((math.inf,), 2.0)],
    ids=str,
)
def test_ours_are_as_many_times_as_fast_as_was_asked(powers: tuple[float, ...], least: float) -> None:
    assert all(ms(AUTHORS, p) / ms(OURS, p) >= least for p in powers)


def minutes(kernels: str) -> float:
    """The 1300-epoch recipe: p rises exponentially from 8 to 1000, steps between the powers interpolated over log p."""
    finite = [p for p in POWERS if p < math.inf]
    mean = 0.0
    for p, q in itertools.pairwise([*finite, 1000.0]):
        last = ms(kernels, q) if q in finite else ms(kernels, p)
        mean += (ms(kernels, p) + last) / 2 * math.log(q / p, 125)
    return (100 * ms(kernels, 8) + 1150 * mean + 50 * ms(kernels, math.inf)) * STEPS / 60_000


def test_the_recipe_takes_as_long_as_projected() -> None:
    ours, told = minutes(OURS), re.findall(r"interpolated over log p: (\d+) minutes", NOTES)
    assert told == [f"{ours:.0f}"]
    assert ours <= 70
    elsewhere = (100 * ms(AUTHORS, 8) + 1150 * 90 + 50 * ms(AUTHORS, math.inf)) * STEPS / 60_000
    assert f"p = 8 alone and take 90 ms elsewhere: {elsewhere:.0f})" in NOTES
    epoch = json.loads((ROOT / "records" / "cifar10-8-800-epochs.json").read_text())["seconds_per_epoch"]
    start, rise, infinite = (epoch[phase] for phase in ("p_start", "rise", "infinite"))
    assert f"{start:.1f} s an epoch at p = 8, {rise:.1f} on the rise of p, {infinite:.1f} at infinity" in NOTES
    assert f"makes {(100 * start + 1150 * rise + 50 * infinite) / 60:.0f} minutes for 100, 1150 and 50" in NOTES


def test_forward_and_memory_are_those_of_the_records() -> None:
    forward = float(ROWS[OURS, math.inf]["forward_ms"])
    assert forward <= 6.5
    assert f"{forward:.1f} ({ROWS[OURS, math.inf]['commit']})" in NOTES
    gib = {p: float(ROWS[OURS, p]["peak_gib"]) for p in POWERS}
    large = max(gib[p] for p in POWERS if 64 <= p < math.inf)
    assert gib[math.inf] <= 4
    assert large <= 16
    assert f"Memory: {gib[math.inf]:.1f} GiB at infinity, {large:.1f} at large p, {gib[8]:.1f} at p = 8" in NOTES


def test_the_first_call_is_that_of_the_record() -> None:
    record = json.loads((ROOT / "records" / "gpu-first-call.json").read_text())
    first, following = (record[f"{name}_process_seconds"].values() for name in ("first", "next"))
    assert sum(first) < 20
    assert f"compiles in {min(first):.1f} to {max(first):.1f} s per p" in NOTES
    assert f"needs {min(following):.3f} to {max(following):.2f} s" in NOTES


def test_the_readme_has_the_same_steps() -> None:
    whole = README.split("a training step of the paper's CIFAR-10 net on an H200: ")[1].split(" ([train_step")[0]
    initial, trained = whole.removeprefix("at initial weights ").split("; on states of a real run ")
    told, of_authors = initial.split(", where the authors' take ")
    first = re.fullmatch(r"(\d+) ms at p = 8, (\d+) at 12, ([\d.]+) at ∞", told)
    assert first
    for figure, of_author, p in zip(first.groups(), re.findall(r"\d+", of_authors), (8, 12, math.inf), strict=True):
        assert is_rounded(figure, ms(OURS, p)), p
        assert is_rounded(of_author, ms(AUTHORS, p)), p
    told, of_authors = trained.split(", where the authors' take ")
    lists = re.findall(r"(\d+) at (\d+(?:(?:, | and )\d+\b(?! at))*)", told)
    found = {float(p): figure for figure, powers in lists for p in re.findall(r"\d+", powers)}
    assert set(found) == {p for p in POWERS if 12 < p < math.inf}
    for p, figure in found.items():
        assert is_rounded(figure, ms(OURS, p)), p
        assert is_rounded(of_authors, ms(AUTHORS, p)), p


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "records" / f"{name}.json").read_text())


def epochs(name: str) -> list[tuple[float, float, float]]:
    """(p, loss, seconds) of each epoch of a recorded run."""
    log = read_events(ROOT / "records" / f"{name}.events.jsonl.gz")
    events = [event for event in log if event["event"] == "epoch"]
    ends = [0.0, *(event["seconds"] for event in events)]
    return [
        (float(e["p"]), e["loss"], end - start)
        for e, (start, end) in zip(events, itertools.pairwise(ends), strict=True)
    ]


def test_exact_and_snapped_p_end_as_told() -> None:
    snapped, exact = epochs("mnist-0.3-snapped"), epochs("mnist-0.3")
    jump = next(place for place, (p, _, _) in enumerate(snapped) if p > 8)
    assert (
        f"falls to {snapped[jump - 1][1]:.4f} in the last epoch at p = 8, is {snapped[jump][1]:.4f} in the next"
        in NOTES
    )
    assert f"thirteen more to come back to {snapped[jump + 13][1]:.4f}; then p goes to 12" in NOTES
    assert {p for p, _, _ in snapped[jump : jump + 14]} == {10}
    assert f"a loss of {exact[-1][1]:.4f} where the snapped one has {snapped[-1][1]:.4f}" in NOTES
    ends = [record(name) for name in ("mnist-0.3", "mnist-0.3-snapped")]
    certified = [f"{100 * end['results']['mnist-test eps=0.3']['certified_margin']:.2f}" for end in ends]
    seconds = [f"{end['seconds']:.0f}" for end in ends]
    assert (
        f"{certified[0]} % certified where that has {certified[1]}, and takes {seconds[0]} s instead of {seconds[1]}"
        in NOTES
    )
    assert (
        f"{seconds[1]} s instead of {seconds[0]}, with {certified[1]} % certified instead of {certified[0]}" in README
    )


def test_epochs_at_small_p_take_as_long_as_told() -> None:
    pattern = (
        r"an epoch between p = 8 and 16 takes ([\d.]+) to ([\d.]+) s, where even numbers take ([\d.]+) to ([\d.]+)"
    )
    (told,) = re.findall(pattern, NOTES)
    names = ("cifar10-8-2021-125-epochs", "cifar10-8-800-epochs")
    taken = [[seconds for p, _, seconds in epochs(name) if 8 < p <= 16] for name in names]
    found = [ends for seconds in taken for ends in (min(seconds), max(seconds))]
    assert all(is_rounded(figure, value) for figure, value in zip(told, found, strict=True)), found


def test_seeds_and_kernels_move_the_loss_as_told() -> None:
    seeds = record("mnist-0.3-first-epochs")["seeds"]
    losses = {(seed, by): [row["loss"] for row in rows] for seed, runs in seeds.items() for by, rows in runs.items()}
    apart = [
        abs(ours - theirs)
        for seed in "12"
        for ours, theirs in zip(losses[seed, "linfnet"], losses[seed, "authors"], strict=True)
    ]
    (told,) = re.findall(r"the loss of the first 25 epochs stays within ([\d.]+) of ours", NOTES)
    assert len(apart) == 2 * 25
    assert float(told) - 1e-4 < max(apart) <= float(told)
    ends = [losses[seed, "linfnet"][-1] for seed in "123"]
    assert max(event["epoch"] for runs in seeds.values() for rows in runs.values() for event in rows) == 25
    assert "at p = 8: larger p have not been trained by the authors' kernels" in NOTES  # 25 epochs are the first phase
    assert f"seed 1 ends them at {ends[0]:.4f}, seed 2 at {ends[1]:.4f} and seed 3 at {ends[2]:.4f}" in NOTES


def test_certificates_by_interval_bounds_are_as_told() -> None:
    names = ("mnist-0.3", "mnist-0.3-snapped", "mnist-0.3-snapped-seed-2")
    found = [record(name)["results"]["mnist-test eps=0.3"] for name in names]
    first, second, third = (f"{100 * each['certified_interval']:.2f}" for each in found)
    assert f"the three runs on MNIST at 0.3 have {first}, {second} and {third}, below the paper's 93.20" in README
    assert all(max(each["certified_margin"], each["certified_interval"]) < 0.932 for each in found)
    tenth = record("mnist-0.1")["results"]["mnist-test eps=0.1"]["certified_interval"]
    assert f"and that at 0.1 {100 * tenth:.2f}" in README
    assert f"ends with {100 * found[2]['certified_margin']:.2f} % by the margin and {third} % by interval" in NOTES


def test_long_lists_take_as_long_as_told() -> None:
    seconds = {p: taken for p, _, taken in epochs("cifar10-8-hybrid-125-epochs")}
    (told,) = re.findall(
        r"takes ([\d.]+) to ([\d.]+) s an epoch from p = 40 to 50, .* up to ([\d.]+) s at p = 64 and ([\d.]+) s at 72",
        NOTES,
    )
    middle = [taken for p, taken in seconds.items() if 40 <= p <= 50]
    found = (min(middle), max(middle), seconds[64], seconds[72])
    assert seconds[64] == max(seconds.values())
    assert all(is_rounded(figure, value) for figure, value in zip(told, found, strict=True)), found
