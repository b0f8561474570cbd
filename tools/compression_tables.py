"""The table of compressed nets, from records/compression.json."""

from typing import Any

from tools.records import link, read_record, table

WORDS = {"plain": "plain", "first": "any", "second": "any, runners-up"}


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
