"""The model card: what a model is, what it was measured to do, and how to load it, in the hub's layout."""

from collections.abc import Iterator, Mapping
from typing import Any

CARD = """\
---
library_name: linfnet
pipeline_tag: image-classification
tags: [linfnet, certified-robustness, l-infinity]
---
# {title}

An ℓ∞-distance net: {shape} images in [0, 1] → {classes} classes, hidden layers {hidden}, {parameters:,} parameters.
It is {lipschitz:.6g}-Lipschitz in the ℓ∞ norm of the pixels: one forward pass proves a radius inside which its class
cannot change. Normalisation (mean {mean}, std {std:g}) is part of the model.

```python
from linfnet import LinfNet

net = LinfNet.load("path/to/this/folder")
logits = net(images)  # [batch, {channels}, {rows}, {columns}] in [0, 1]
```

## Classes
{names}

## Results
{results}
"""


def model_card(
    config: Mapping[str, Any], parameters: int, results: Mapping[str, Any] | None = None, title: str = "ℓ∞-distance net"
) -> str:
    """The text of README.md for a net of that config, with a table of results where there are some.

    Args:
        config: as in config.json.
        parameters: how many numbers the net learned.
        results: what was measured, by a name for each: numbers, or mappings of numbers.
        title: the heading.
    """
    names: list[str] = list(config.get("class_names") or ())
    channels, rows, columns = config["image_shape"]
    return CARD.format(
        title=title,
        shape=f"{channels}×{rows}×{columns}",
        channels=channels,
        rows=rows,
        columns=columns,
        classes=config["classes"],
        hidden="×".join(map(str, config["hidden"])) or "none",
        parameters=parameters,
        lipschitz=1 / config["std"],
        mean=", ".join(f"{value:g}" for value in config["mean"]),
        std=config["std"],
        names=", ".join(names) if names else f"numbered 0 to {config['classes'] - 1}",
        results=_results_table(results or {}),
    )


def _results_table(results: Mapping[str, Any]) -> str:
    """A row for each number or text, those of nested mappings included; shares stay as they are, in [0, 1]."""
    rows = [f"| {name} | {value} |" for name, value in _flatten(results, "")]
    return "\n".join(["| what | value |", "|---|---|", *rows]) if rows else "None were given when the model was saved."


def _flatten(results: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in results.items():
        name = f"{prefix} {key}".strip().replace("|", "/")
        if isinstance(value, Mapping):
            yield from _flatten(value, name)
        elif isinstance(value, float):
            yield name, f"{value:.6g}"
        elif isinstance(value, int | str):
            yield name, str(value).replace("|", "/")
