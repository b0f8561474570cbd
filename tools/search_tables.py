"""The tables of docs/beyond.md: searches (records/search-*.json, files `outcome.json`) and runs of the full net."""

import statistics
from typing import Any

from tools.records import RECORDS, link, percent, read_record, table

OPTIONS = "λ from 0.3, slopes 64, p from 6"
# Runs of 125 epochs with the net of the paper at 8/255.
FULL_SIZE = {
    "cifar10-8-125-epochs-seed-3": "published",
    "cifar10-8-125-epochs-float16-seed-3": "published, float16",
    "cifar10-8-125-epochs-leak-seed-1": f"{OPTIONS}, leak 0.1, float16",
    "cifar10-8-125-epochs-falling-leak-seed-1": f"{OPTIONS}, leak 0.1 to 0, float16",
    "cifar10-8-125-epochs-falling-leak-seed-2": f"{OPTIONS}, leak 0.1 to 0, float16",
}


def searches() -> str:
    """Return a table for each recorded search, best variant first."""
    names = sorted(file.stem for file in RECORDS.glob("search-*.json"))
    return "\n".join(map(_search, names)) if names else "No search is recorded yet.\n"


def _search(name: str) -> str:
    record = read_record(name)
    rows = [_row(variant) for variant in record["variants"]]
    failed = [f"Failed: {trial}: {error}\n" for trial, error in record["failed"].items()]
    head = ["variant", "changes", "seeds", "certified", "clean", "certified on training images"]
    head += ["classes never predicted", "seconds"]
    return "\n".join([f"{record['title']} ({link(f'{name}.json')}):\n", table(head, rows), *failed])


def _row(variant: dict[str, Any]) -> list[str]:
    def percent(figure: str) -> str:
        spread = variant["spread"][figure]
        deviation = "" if spread["deviation"] is None else f" ± {100 * spread['deviation']:.2f}"
        return f"{100 * spread['mean']:.2f}{deviation}"

    changes = ", ".join(f"`{change}`" for change in variant["changes"]) or "–"
    counts = [trial["never_predicted"] for trial in variant["trials"] if "never_predicted" in trial]
    shares = [percent(figure) for figure in ("certified", "clean", "certified_train")]
    return [
        variant["name"],
        changes,
        str(len(variant["trials"])),
        *shares,
        f"{statistics.mean(counts):.1f}" if counts else "–",
        f"{variant['spread']['seconds']['mean']:.0f}",
    ]


def prototypes() -> str:
    """Return the table of changes that were tried in scripts, best change first."""
    name = "prototypes-overfitting-8"
    record, changes = read_record(name), dict[str, list[dict[str, Any]]]()
    for row in record["rows"]:
        changes.setdefault(row["change"], []).append(row)
    figures = ("certified", "clean", "certified_train")
    means = [
        (change, len(rows), [statistics.mean(row[figure] for row in rows) for figure in figures])
        for change, rows in changes.items()
    ]
    means.sort(key=lambda mean: mean[2], reverse=True)
    head = ["change", "seeds", "certified", "clean", "certified on training images"]
    rows = [[change, str(seeds), *map(percent, shares)] for change, seeds, shares in means]
    return f"{record['title']} ({link(f'{name}.json')}):\n\n{table(head, rows)}"


def full_size() -> str:
    """Return a table of the runs with nets of full size."""
    head = ["variant", "seed", "certified", "clean", "certified on training images", "clean", "seconds", "record"]
    return table(head, [_full_size_row(name, variant) for name, variant in FULL_SIZE.items()])


def _full_size_row(name: str, variant: str) -> list[str]:
    record = read_record(name)
    results = record["results"]["training"] if "results" in record else record
    shares: list[float | None] = []
    for split in ("test", "train"):
        found = results.get(split)
        shares += [found["certified"]["8/255"], found["clean"]] if found else [None, None]
    return [variant, str(record["seed"]), *map(percent, shares), f"{record['seconds']:.0f}", link(f"{name}.json")]
