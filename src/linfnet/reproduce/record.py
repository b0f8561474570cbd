"""A finished run as a record: one JSON file with all figures and their circumstances, and the event log, compressed."""

import gzip
import itertools
from pathlib import Path
from typing import Any

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.evaluation import result_key
from linfnet.files import read_table, replacing, write_json
from linfnet.recipes import Recipe, recipe_from_toml, recipe_to_toml
from linfnet.reproduce.curve import beside_authors
from linfnet.train import RunFolder, read_results, resume_hint


def hardware_of(environment: dict[str, Any], trained: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """What a run was trained on, one after the other: its env.json, the `train` of its results and its log say it."""
    names: list[str] = []
    for changes in ({}, *(resumed["environment"] for resumed in resumptions(events))):
        sitting = environment | changes
        on_cpu = trained.get("device") == "cpu" or not sitting.get("gpu")
        names.append(str(sitting.get("cpu" if on_cpu else "gpu", "unknown")))
    return ", then ".join(dict.fromkeys(names))


def resumptions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At which steps a run was resumed, and what had changed since it began."""
    resumed = [event for event in events if event["event"] == "resume"]
    tables = [event.get("environment") for event in resumed]
    return [
        {"step": event.get("step", 0), "environment": table if isinstance(table, dict) else {}}
        for event, table in zip(resumed, tables, strict=True)
    ]


def seconds_per_epoch(recipe: Recipe, events: list[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds of an epoch in each phase of the schedule, from the times that the epochs ended at."""
    ends = {event["epoch"]: float(event["seconds"]) for event in events if event["event"] == "epoch"}
    ends[0] = 0.0
    borders = [0, *itertools.accumulate(recipe.schedule.epochs)]
    phases = zip(("p_start", "rise", "infinite"), itertools.pairwise(borders), strict=True)
    return {
        name: round((ends[last] - ends[first]) / (last - first), 3)
        for name, (first, last) in phases
        if last > first and first in ends and last in ends
    }


def make_record(path: Path, what: str, events_file: str, commit: str | None = None) -> dict[str, Any]:
    """All that a record says of the finished run in a folder.

    Args:
        path: the run folder.
        what: a sentence about the run; by default its recipe's title.
        events_file: the name of the file with the event log, beside the record.
        commit: of the source, for a run that was not started from a git checkout.
    """
    folder = RunFolder.open(path)
    events = folder.events()
    # The log decides, not the weights: those of large nets may have stayed where they were trained.
    if not any(event["event"] == "finish" for event in events):
        raise LinfnetError(f"{path} has not finished; {resume_hint(path)}")
    environment, results = read_table(path / "env.json"), read_results(path)
    if commit is not None:
        if environment.get("commit") not in (None, commit):
            raise ArgumentError(f"--commit is {commit!r}, but env.json of the run says {environment['commit']!r}")
        environment |= {"commit": commit, "commit_given_by_hand": True}
    trained, recipe = results.get("train", {}), folder.recipe
    if "seconds" not in trained:
        raise LinfnetError(f"{path / 'results.json'} has no 'train' with 'seconds': what training took is not known")
    seeds = {"seed": recipe.run.seed, "epochs": list(recipe.schedule.epochs)}
    cost = {
        "hardware": hardware_of(environment, trained, events),
        "seconds": trained["seconds"],
        "seconds_per_epoch": seconds_per_epoch(recipe, events),
    }
    beside = beside_authors(recipe, events)
    return {
        "what": what or recipe.title,
        **seeds,
        **cost,
        "environment": environment,
        **({"resumed": resumed} if (resumed := resumptions(events)) else {}),
        "recipe": recipe_to_toml(recipe),
        "results": results,
        **({"beside_the_authors_curve": beside} if beside else {}),
        "events": events_file,
    }


def certificates_of(entry: dict[str, Any]) -> list[str]:
    """The keys of an evaluation that hold certified accuracies; of an l_inf-distance net by margin, then by interval.

    >>> certificates_of({"certified_interval": 0.5, "clean": 0.9, "certified_margin": 0.4, "certified_and_broken": 0})
    ['certified_margin', 'certified_interval']
    """
    names = [key for key in entry if key.startswith("certified_") and key != "certified_and_broken"]
    return sorted(names, key=lambda name: name != "certified_margin")


def readme_row(record: dict[str, Any], name: str) -> str:
    """The row of a results table for a record, its figures at the recipe's first epsilon on all test images."""
    recipe = recipe_from_toml(record["recipe"], name, name)
    entry = record["results"][result_key(f"{recipe.data.name}-test", recipe.evaluation.eps[0])]
    reported = recipe.reported
    figures = [f"{100 * entry[name]:.2f}" for name in ("clean", "pgd", certificates_of(entry)[0])]
    paper = "–"
    if reported.source == "the paper":
        paper = f"{reported.clean:.2f} / {reported.pgd:.2f} / {reported.certified:.2f}, {reported.cost}"
        steps = recipe.evaluation.pgd_steps
        paper += f", PGD-{steps}" if steps != 100 else ""
    epochs = f"{sum(record['epochs'])} epochs ({'/'.join(map(str, record['epochs']))})"
    cost = f"seed {record['seed']}, {record['seconds']:.0f} s on {record['hardware']}"
    snapped = ", p snapped" if recipe.schedule.snap_p and "p snapped" not in record["what"] else ""
    return (
        f"| {record['what']}{snapped}, {epochs}, {cost} | {' | '.join(figures)} | {paper} | [{name}](records/{name}) |"
    )


def write_record(path: Path, out: Path, *, what: str = "", commit: str | None = None, replace: bool = False) -> Path:
    """Write `NAME.json` and `NAME.events.jsonl.gz`; the path of the latter."""
    if out.suffix != ".json":
        raise ArgumentError(f"--out is {str(out)!r}; wanted a file that ends in .json")
    if out.exists() and not replace:
        raise ArgumentError(f"{out} exists; give --replace to write it anew")
    log = out.with_name(f"{out.stem}.events.jsonl.gz")
    record = make_record(path, what, log.name, commit)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Both or none. No time and no name in the compressed log: the same log gives the same file.
    with replacing(log) as temporary:
        temporary.write_bytes(gzip.compress((path / "events.jsonl").read_bytes(), mtime=0))
        write_json(out, record)
    return log
