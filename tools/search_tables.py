"""The tables of docs/beyond.md, generated from records/search-*.json, which are files `outcome.json` of searches."""

import statistics
from typing import Any

from tools.records import RECORDS, link, read_record, table


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
