"""The tables of compressed nets, from records/compression.json and records/fine-tuning.json."""

from typing import Any

from tools.records import link, read_record, table

WORDS = {"plain": "plain", "first": "any", "second": "any, runners-up"}

# Images and accuracy of each column of the table of fine-tuning.
CHANGES = (("held_out", "clean"), ("held_out", "certified"), ("training", "certified"))


def compression() -> str:
    """Return the table: size, accuracies and share of identical logits for each choice of connections."""
    record: dict[str, Any] = read_record("compression")
    rows: list[list[str]] = []
    for name, collection in sorted(record.items()):
        first = collection["rows"][0]
        net = f"MNIST {collection['eps']}"
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
        assert name.startswith("mnist")
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
    """Return the table: how fine-tuning with each setting changes the accuracies, on test images for the chosen one."""
    rows: list[list[str]] = []
    for record in read_record("fine-tuning").values():
        net, before, test = record["recipe"], record["before"], record["test"]
        for row in record["rows"]:
            shares = [_change(before[part], row[part], name) for part, name in CHANGES]
            rows.append([net, row["setting"], f"{row['processor_seconds']:.0f}", *shares, "", ""])
            if row["setting"] == record["chosen"]:
                rows[-1][-2:] = [_change(test["before"], test["after"], name) for name in ("clean", "certified")]
    groups = ("clean, held-out", "certified, held-out", "certified, trained on", "clean, test", "certified, test")
    header = ["net", "changes of the recipe", "seconds", *groups]
    link_to = link("fine-tuning.json")
    return (
        table(header, rows) + f"\nIn points ({link_to}). Only the setting with the best held-out figure was tested.\n"
    )


def _change(before: dict[str, float], after: dict[str, float], name: str) -> str:
    return f"{100 * (after[name] - before[name]):+.2f}"
