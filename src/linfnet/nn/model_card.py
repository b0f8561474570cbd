"""The model card (README.md of a model folder): description, results and usage, in the format of the hub."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from linfnet.epsilon import format_epsilon
from linfnet.results import Results

CARD = """\
---
library_name: linfnet
pipeline_tag: image-classification
tags: [linfnet, certified-robustness, l-infinity]
---
# A net with certificates

{description}

{channels}×{rows}×{columns} images in [0, 1] → {classes} classes, {parameters:,} parameters. Normalisation (mean {mean},
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
    """Return the class names in a config, or an empty list if it does not contain them."""
    given: Any = config.get("class_names")
    return [str(name) for name in cast(list[Any], given)] if isinstance(given, list) else []


def model_card(config: Mapping[str, Any], description: str, parameters: int, results: Results | None = None) -> str:
    """Return the text of README.md for a net with this config, with a table of its results."""
    channels, rows, columns = config["image_shape"]
    return CARD.format(
        description=description,
        channels=channels,
        rows=rows,
        columns=columns,
        classes=config["classes"],
        parameters=parameters,
        mean=", ".join(f"{value:g}" for value in config["mean"]),
        std=config["std"],
        names=", ".join(names_in(config)) or f"numbered 0 to {config['classes'] - 1}",
        results="\n\n".join(_results(results or Results())) or "The model was saved without results.",
    )


def _results(results: Results) -> Iterator[str]:
    """Yield a sentence about training, and a table with a row for each evaluation; accuracies are in percent."""
    if training := results.training:
        yield f"Trained for {training.epochs} epochs in {training.seconds:.0f} s, seed {training.seed}."
        measured = training.test or training.train
        if measured is not None:
            certified = (f"certified {_percent(s)} at ε = {format_epsilon(e)}" for e, s in measured.certified.items())
            accuracies = ", ".join((f"clean {_percent(measured.clean)}", *certified))
            images = "training" if training.test is None else "test"
            yield f"Accuracy in % on the {images} images at the end of training, rounding ignored: {accuracies}."
    if results.evaluations:
        certificates = list(dict.fromkeys(name for result in results.evaluations for name in result.certified))
        header = ["images", "ε", "clean", "attacked", "attack", *(f"certified ({name})" for name in certificates)]
        rows = [header, ["---", "---", *["---:"] * 2, "---", *["---:"] * len(certificates)]]
        for result in results.evaluations:
            shares = (_percent(result.certified.get(name)) for name in certificates)
            named = (result.images, format_epsilon(result.eps), _percent(result.clean), _percent(result.attacked))
            rows.append([*named, str(result.attack), *shares])
        yield "Accuracy in %:\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
