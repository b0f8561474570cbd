"""The model card (README.md of a model folder): description, results and usage, in the format of the hub."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

CARD = """\
---
library_name: linfnet
pipeline_tag: image-classification
tags: [linfnet, certified-robustness, l-infinity]
---
# {title}

{description}

{shape} images in [0, 1] → {classes} classes, {parameters:,} parameters. Normalisation (mean {mean},
std {std:g}) is part of the model.

```python
from linfnet import load_model

net = load_model("path/to/this/folder")
logits = net(images)  # [batch, {channels}, {rows}, {columns}] in [0, 1]
```

## Classes
{names}

## Results
{results}
"""


def names_in(config: Mapping[str, Any]) -> list[str]:
    """The class names in a config; empty if there is no list of them."""
    given: Any = config.get("class_names")
    return [str(name) for name in cast(list[Any], given)] if isinstance(given, list) else []


def model_card(
    config: Mapping[str, Any],
    description: str,
    parameters: int,
    results: Mapping[str, Any] | None = None,
    title: str = "A net with certificates",
) -> str:
    """The text of README.md for a net of this config.

    Args:
        config: as in config.json.
        description: the kind of net and its certificates.
        parameters: the number of learned parameters.
        results: measured values by name: numbers, or mappings of numbers.
        title: the heading.
    """
    names = names_in(config)
    channels, rows, columns = config["image_shape"]
    return CARD.format(
        title=title,
        description=description,
        shape=f"{channels}×{rows}×{columns}",
        channels=channels,
        rows=rows,
        columns=columns,
        classes=config["classes"],
        parameters=parameters,
        mean=", ".join(f"{value:g}" for value in config["mean"]),
        std=config["std"],
        names=", ".join(names) if names else f"numbered 0 to {config['classes'] - 1}",
        results=_results_table(results or {}),
    )


def _results_table(results: Mapping[str, Any]) -> str:
    """A row for each number or text, also in nested mappings; accuracies in [0, 1]."""
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
