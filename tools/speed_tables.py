"""Tables of speed, generated from records/."""

import itertools
import math
from typing import Any

from tools.records import RunRecord, link, percent, read_record, read_rows, table

OURS, EAGER, AUTHORS = "linfnet", "linfnet, eager", "authors"
# The run of the paper's headline with all its epochs.
FULL_SCHEDULE = "cifar10-8-1300-epochs"
STEPS_PER_EPOCH = math.ceil(50_000 / 512)  # CIFAR-10 in batches of 512


def cpu_speed() -> str:
    """Return the table of the best times of a forward pass, 256 x 1024 x 1024: our CPU kernels and two alternatives."""
    times: dict[str, dict[str, float]] = {}
    for row in read_rows("cpu-bench"):
        if (row["shape"], row["direction"], row["state"]) == ([256, 1024, 1024], "forward", "random"):
            times.setdefault(row["p"], {})[row["who"]] = row["best"]
    rows: list[list[str]] = []
    for p, time in times.items():
        if float(p) in (8, math.inf):
            milliseconds = [f"{time[who]:.1f}" for who in ("ours", "matmul", "cdist")]
            ratios = [f"{time['matmul'] / time['ours']:.2f}", f"{time['cdist'] / time['ours']:.0f}"]
            rows.append([_power(float(p)), *milliseconds, *ratios])
    head = ["p", "linfnet, ms", "matrix product, ms", "`torch.cdist`, ms"]
    return table([*head, "speed / matrix product", "speed / `torch.cdist`"], rows)


def _power(p: float) -> str:
    return "∞" if math.isinf(p) else f"{p:g}"


def newest_steps() -> dict[float, dict[str, dict[str, Any]]]:
    """Return, for each p, the rows of the last commit at which all three kinds of kernels were measured."""
    measured: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in read_rows("train_step"):
        measured.setdefault((row["commit"], float(row["p"])), {})[row["kernels"]] = row
    return {
        p: kinds
        for (_, p), kinds in sorted(measured.items(), key=lambda item: item[0][1])
        if {OURS, EAGER, AUTHORS} <= set(kinds)
    }


def _newest() -> dict[float, dict[str, dict[str, Any]]]:
    """Return the measurements at the values of p in the tables."""
    steps = newest_steps()
    return {p: steps[p] for p in (8.0, 10.0, 12.0, 28.0, 64.0, 112.0, 224.0, 512.0, math.inf)}


def gpu_steps() -> str:
    """Return the table of milliseconds per training step by p, with our kernels and with the authors'."""
    return _steps_table(_newest(), details=False)


def gpu_step_details() -> str:
    """Return the table of `gpu_steps` with rows for eager execution, forward pass, memory, weights and commit."""
    return _steps_table(_newest(), details=True)


def _steps_table(steps: dict[float, dict[str, dict[str, Any]]], *, details: bool) -> str:
    columns = list(steps.values())
    rows = [["linfnet", *(f"{kinds[OURS]['step_ms']:.1f}" for kinds in columns)]]
    if details:
        rows.append(["linfnet without graphs", *(f"{kinds[EAGER]['step_ms']:.1f}" for kinds in columns)])
    rows.append(["the authors' kernels", *(f"{kinds[AUTHORS]['step_ms']:.1f}" for kinds in columns)])
    rows.append(["ratio", *(f"{kinds[AUTHORS]['step_ms'] / kinds[OURS]['step_ms']:.1f}" for kinds in columns)])
    if details:
        rows.append(["forward pass, without graphs", *(f"{kinds[OURS]['forward_ms']:.1f}" for kinds in columns)])
        rows.append(["memory, GiB", *(f"{kinds[OURS]['peak_gib']:.1f}" for kinds in columns)])
        rows.append(["weights", *(kinds[OURS]["state"].split("/")[0] for kinds in columns)])
        rows.append(["commit", *(kinds[OURS]["commit"] for kinds in columns)])
    return table(["p", *map(_power, steps)], rows)


def _minutes(kernels: str) -> float:
    """Return the projected minutes of the 1300-epoch recipe with p snapped.

    p rises exponentially from 8 to 1000; times between the measured values of p are interpolated over log p.
    """
    times = {p: float(kinds[kernels]["step_ms"]) for p, kinds in _newest().items()}
    finite = [p for p in times if p < math.inf]
    mean = 0.0
    for p, q in itertools.pairwise([*finite, 1000.0]):
        mean += (times[p] + times.get(q, times[p])) / 2 * math.log(q / p, 125)
    return (100 * times[8.0] + 1150 * mean + 50 * times[math.inf]) * STEPS_PER_EPOCH / 60_000


def _projected_minutes() -> float:
    """Return the minutes of the 1300-epoch recipe with p snapped, projected from the epochs of a run of 800 epochs."""
    seconds = read_record("cifar10-8-800-epochs")["seconds_per_epoch"]
    return (100 * seconds["p_start"] + 1150 * seconds["rise"] + 50 * seconds["infinite"]) / 60


def run_time() -> str:
    """Return a sentence that says how long the paper's CIFAR-10 runs take on a GPU."""
    half, single = read_record(FULL_SCHEDULE), read_record("cifar10-8-800-epochs")
    return (
        f"On CIFAR-10 at 8/255 with `schedule.snap_p=true`, the full recipe of {sum(half['epochs'])} epochs took "
        f"{half['seconds'] / 60:.0f} minutes on one {half['hardware']} with `run.float16=true` "
        f"({link(f'{FULL_SCHEDULE}.json')}). Without it, {sum(single['epochs'])} epochs took "
        f"{single['seconds'] / 60:.0f} minutes ({link('cifar10-8-800-epochs.json')}), so the full recipe is projected "
        f"to take {_projected_minutes():.0f} minutes.\n"
    )


def full_recipe() -> str:
    """Return the table of minutes of the 1300-epoch recipe: measured, and projected from steps and a shorter run."""

    def epochs(name: str) -> list[str]:
        seconds = read_record(name)["seconds_per_epoch"]
        return [f"{seconds[phase]:.1f}" for phase in ("p_start", "rise", "infinite")]

    half = read_record(FULL_SCHEDULE)["seconds"] / 60
    projected = f"linfnet, projected from a run of 800 epochs ({link('cifar10-8-800-epochs.json')})"
    rows = [
        ["linfnet, projected from the steps above", "–", "–", "–", f"{_minutes(OURS):.0f}"],
        ["the authors' kernels, projected from the steps above", "–", "–", "–", f"{_minutes(AUTHORS):.0f}"],
        [projected, *epochs("cifar10-8-800-epochs"), f"{_projected_minutes():.0f}"],
        [f"linfnet in float16, measured ({link(f'{FULL_SCHEDULE}.json')})", *epochs(FULL_SCHEDULE), f"{half:.0f}"],
    ]
    return table(["", "s/epoch at p = 8", "as p rises", "at ∞", "minutes for 100/1150/50 epochs"], rows)


def first_call() -> str:
    """Return the table of seconds of the first call of the GPU kernels by p, in the first and in the next process."""
    record = read_record("gpu-first-call")
    first, following = record["first_process_seconds"], record["next_process_seconds"]
    rows = [
        ["first process (compiles)", *(f"{seconds:.2f}" for seconds in first.values())],
        ["next process (cached)", *(f"{following[p]:.3f}" for p in first)],
    ]
    return table(["p", *(_power(float(p)) for p in first)], rows)


def snapping() -> str:
    """Return the table of runs on MNIST at 0.3 with exact and with snapped p."""
    rows: list[list[str]] = []
    for name in ("mnist-0.3", "mnist-0.3-snapped", "mnist-0.3-snapped-seed-2"):
        run = RunRecord.read(name)
        epochs, result = run.epochs(), run.result
        jump = next(index for index, epoch in enumerate(epochs) if epoch["p"] > 8)
        losses = [epochs[index]["loss"] for index in (jump - 1, jump, -1)]
        p = "snapped" if run.recipe.schedule.snap_p else "exact"
        certified = [percent(result.certified[certificate]) for certificate in ("margin", "interval")]
        seconds = f"{run.record['seconds']:.0f}"
        rows.append([p, str(run.record["seed"]), *(f"{loss:.4f}" for loss in losses), *certified, seconds])
        rows[-1].append(link(f"{name}.json"))
    head = ["p", "seed", "loss, last epoch at p = 8", "next epoch", "last epoch"]
    return table([*head, "certified by margin", "by interval", "seconds", "record"], rows)


def snapping_by_seed() -> str:
    """Return the table of 49-epoch runs on CIFAR-10 at 8/255 with exact and with snapped p, two seeds each."""
    rows: list[list[str]] = []
    for seed in (1, 2):
        for p in ("exact", "snapped"):
            name = f"cifar10-8-49-epochs-{p}-seed-{seed}"
            run = RunRecord.read(name)
            result, seconds = run.result, run.record["seconds"]
            shares = (result.clean, result.attacked, result.certified["margin"], result.certified["interval"])
            rows.append([str(seed), p, *map(percent, shares), f"{seconds:.1f}", link(f"{name}.json")])
    head = ["seed", "p", "clean", "PGD-100", "certified by margin", "by interval", "seconds", "record"]
    return table(head, rows)


def float16_steps() -> str:
    """Return the table of milliseconds per training step by p, with training in float16 and its variants."""
    variants = {
        "float32": "float32",
        "half": "float16",
        "products": "products",
        "all terms": "all terms",
        "16 bits": "16 bits",
    }
    steps = read_record("float16-steps")["steps"]
    rows = [
        [title, *(f"{step['ms'][variant]:.1f}" if variant in step["ms"] else "" for step in steps)]
        for variant, title in variants.items()
    ]
    return table(["p", *(_power(float(step["p"])) for step in steps)], rows)


def first_epochs() -> str:
    """Return the table of losses after the first phase of MNIST at 0.3, by seed and kernels."""
    seeds = read_record("mnist-0.3-first-epochs")["seeds"]
    rows: list[list[str]] = []
    for seed, runs in seeds.items():
        losses = {kernels: [epoch["loss"] for epoch in epochs] for kernels, epochs in runs.items()}
        ours, theirs = losses[OURS], losses.get(AUTHORS)
        apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) if theirs else None
        end = f"{theirs[-1]:.4f}" if theirs else "–"
        rows.append([seed, f"{ours[-1]:.4f}", end, f"{apart:.5f}" if apart is not None else "–"])
    head = ["seed", "loss after 25 epochs, linfnet", "the authors' kernels", "largest difference in an epoch"]
    return table(head, rows)
