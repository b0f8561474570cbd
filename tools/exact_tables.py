"""The table of exact accuracies, from records/exact.json."""

from typing import Any

from tools.records import link, read_record, table


def exact() -> str:
    """Return the table: exact accuracy beside certificates and attacks, and the cost of deciding all test images."""
    record: dict[str, Any] = read_record("exact")
    rows: list[list[str]] = []
    for name, net in sorted(record["nets"].items()):
        for at in net["at"]:
            shares = (_percent(at.get(key)) for key in ("margin", "interval", "exact", "smoothed", "pgd", "clean"))
            cost = (f"{at['searched']:,}", f"{at['branches_max']:,}", f"{at['cpu_seconds']:.0f}")
            rows.append([name, at["eps"], *shares, f"{at['undecided']}", *cost])
    header = ["net", "ε", "margin", "interval", "exact", "smoothed PGD", "PGD-100", "clean", "undecided"]
    header += ["searched", "branches at most", "CPU seconds"]
    about = (
        "Accuracy in % on all 10,000 test images. Searched: images that neither the interval bounds nor the margin "
        "decided; no attack ran before the search. CPU seconds: of all threads, for all images, on a machine that "
        f"other processes used as well. Record: {link('exact.json')}.\n"
    )
    return table(header, rows) + "\n" + about


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
