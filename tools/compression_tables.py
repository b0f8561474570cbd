"""The tables of compressed nets, from records/compression.json and records/fine-tuning.json."""

from typing import Any

from tools.accuracy_tables import DATA
from tools.records import link, read_record, table

WORDS = {"plain": "plain", "first": "any", "second": "any, runners-up"}

# Images and accuracy of each column of the table of fine-tuning, and its title.
CHANGES = {
    ("held_out", "clean"): "clean, held-out",
    ("held_out", "certified"): "certified, held-out",
    ("training", "certified"): "certified, trained on",
}


def compression() -> str:
    """Return the table: size, accuracies and share of identical logits for each choice of connections."""
    record: dict[str, Any] = read_record("compression")
    rows: list[list[str]] = []
    for name, collection in sorted(record.items()):
        first = collection["rows"][0]
        net = f"{DATA[name.split('-')[0]]} {collection['eps']}"
        dense = collection["dense_connections"]
        rows.append(
            [
                net,
                "all (dense)",
                "",
                "float32",
                f"{dense:,}",
                f"{4 * dense / 1e6:.0f}",
                *_accuracy(first, "dense_"),
                "100",
            ]
        )
        for row in collection["rows"]:
            shares = (*_accuracy(row, ""), f"{100 * row['identical']:.2f}")
            chosen = (WORDS[row["which"]], str(row["at_least"]), row["dtype"])
            rows.append([net, *chosen, f"{row['total']:,}", f"{row['bytes'] / 1e6:.2f}", *shares])
    header = [
        "net, ε",
        "decided for",
        "times",
        "weights",
        "connections",
        "MB",
        "clean",
        "certified",
        "identical logits",
    ]
    return table(header, rows) + f"\nIn % of the test images ({link('compression.json')}).\n"


def _accuracy(row: dict[str, Any], prefix: str) -> list[str]:
    return [f"{100 * row[f'{prefix}{name}']:.2f}" for name in ("clean", "certified")]


def fine_tuning() -> str:
    """Return the table of fine-tuning with each setting, and the accuracies of the chosen ones on the test images."""
    rows, tests = list[list[str]](), list[str]()
    for record in read_record("fine-tuning").values():
        net, before, test = record["recipe"], record["before"], record["test"]
        for row in record["rows"]:
            changes = (f"{100 * (row[part][name] - before[part][name]):+.2f}" for part, name in CHANGES)
            rows.append([net, row["setting"], f"{row['processor_seconds']:.0f}", *changes])
        (clean, certified), after = _accuracy(test["before"], ""), _accuracy(test["after"], "")
        tests.append(
            f"- {net}, {record['chosen']}: clean accuracy {clean} % before, {after[0]} % after; "
            f"certified accuracy {certified} % before, {after[1]} % after\n"
        )
    header = ["net", "changes of the recipe", "processor seconds", *CHANGES.values()]
    note = f"Changes in percentage points ({link('fine-tuning.json')}). On the test images:"
    return f"{table(header, rows)}\n{note}\n\n{''.join(tests)}"
