"""The model card (README.md of a model folder): description, results and usage, in the format of the hub."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from linfnet.data import known_sets, set_info
from linfnet.epsilon import format_epsilon
from linfnet.errors import printable
from linfnet.results import Accuracies, Result, Results

CARD = """\
---
{metadata}
---
# {name}

{lead}

{description}

## Results

{results}

## Usage

`linfnet` is not on PyPI yet. Install it in a clone of its repository: `pip install -c constraints.txt .`

```python
import linfnet

net = linfnet.load_model({source})
certified = linfnet.certify(net, images)  # images: float32 [N, {shape}], values from 0 to 1
print(certified.prediction, certified.radius)
```

No change of at most `radius` in each {value} of an image alters its predicted class ({guarantee}).

## The model

| | |
| --- | --- |
| input | {inputs}, values from 0 to 1 |
| normalisation | mean {mean}, standard deviation {std:g}; part of the model |
| output | {classes} classes: {names} |
| parameters | {parameters:,} |
| training | {training} |
{more}
## Limits

- ε and radii are in {value} units: black is 0 and white is 1, so ε = 0.1 is about 26 of 255 grey levels.
- A certificate is about one image and about changes of at most ε in each {value}. It says nothing about rotations,
  blur or other images, and it does not say that the predicted class is correct. The certified accuracies above count
  only correctly classified images.
- Images must look like those of the training set: same size, same range of values, same kind of content.

## Citation

```bibtex
@inproceedings{{zhang2022boosting,
  title     = {{Boosting the Certified Robustness of L-infinity Distance Nets}},
  author    = {{Zhang, Bohang and Jiang, Du and He, Di and Wang, Liwei}},
  booktitle = {{International Conference on Learning Representations}},
  year      = {{2022}},
  url       = {{https://arxiv.org/abs/2110.06850}}
}}
```
"""

# The names of the data sets on the hub.
HUB_SETS = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}


def names_in(config: Mapping[str, Any]) -> list[str]:
    """Return the class names in a config, or an empty list if it does not contain them."""
    given: Any = config.get("class_names")
    return [printable(str(name)) for name in cast(list[Any], given)] if isinstance(given, list) else []


def model_card(
    config: Mapping[str, Any],
    description: str,
    guarantee: str,
    parameters: int,
    results: Results | None = None,
    *,
    name: str,
    source: str,
    recipe: str = "",
    licence: str = "unknown",
    more: Mapping[str, str] | None = None,
    measured: str = "",
) -> str:
    """Return the text of README.md for a net.

    Args:
        config: the contents of config.json.
        description: one or two sentences about the kind of net and its certificates.
        guarantee: what the radii of the net promise, as a phrase.
        parameters: number of trainable parameters.
        results: results of the training and of evaluations.
        name: the title of the card.
        source: the argument of `load_model` in the example.
        recipe: a sentence about the settings of the training.
        licence: an identifier of the hub, such as mit; the card of a new net says unknown.
        more: further rows of the table about the model.
        measured: a sentence with accuracies that is shown if `results` has none.
    """
    results = results or Results()
    shown = shown_results(results.evaluations)
    shape: Sequence[int] = config["image_shape"]
    return CARD.format(
        metadata=_metadata(name, licence, shown),
        name=name,
        lead=_lead(results, shown),
        description=description,
        guarantee=guarantee,
        results=_results(results, shown, measured),
        source=json.dumps(source, ensure_ascii=False),
        shape=", ".join(map(str, shape)),
        inputs=f"{'×'.join(map(str, shape))} images" if len(shape) == 3 else f"arrays of shape {list(shape)}",
        value="pixel" if len(shape) == 3 else "number",
        mean=", ".join(f"{value:g}" for value in config["mean"]),
        std=config["std"],
        classes=config["classes"],
        names=_cell(html.escape(", ".join(names_in(config)), quote=False)) or f"numbered 0 to {config['classes'] - 1}",
        parameters=parameters,
        training=_training(results, recipe),
        more="".join(f"| {key} | {_cell(value)} |\n" for key, value in (more or {}).items()),
    )


def shown_results(results: Sequence[Result]) -> list[Result]:
    """Return the evaluations of the folder's own net, without those on a part of images that were all evaluated."""
    own = [result for result in results if not result.net]
    whole = {(result.data, result.split, result.eps) for result in own if result.limit is None}
    return [result for result in own if result.limit is None or (result.data, result.split, result.eps) not in whole]


def _title(data: str) -> str:
    return set_info(data).title if data in known_sets() else data


def _metadata(name: str, licence: str, shown: Sequence[Result]) -> str:
    """Return the YAML metadata; strings and lists are written as JSON, which is a part of YAML."""
    sets = [HUB_SETS[data] for data in dict.fromkeys(result.data for result in shown) if data in HUB_SETS]
    lines = {
        "library_name": "linfnet",
        "license": licence,
        "pipeline_tag": "image-classification",
        "tags": ["linfnet", "certified-robustness", "adversarial-robustness", "l-infinity"],
        **({"datasets": sets} if sets else {}),
        "metrics": ["accuracy"],
    }
    text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in lines.items())
    tests = [json.dumps(_entry(rows), ensure_ascii=False) for rows in _together(shown) if rows[0].split == "test"]
    if not tests:
        return text
    entries = "\n".join(f"  - {entry}" for entry in tests)
    return f"{text}\nmodel-index:\n- name: {json.dumps(name, ensure_ascii=False)}\n  results:\n{entries}"


def _together(shown: Sequence[Result]) -> list[list[Result]]:
    """Return lists of evaluations that differ only in the attack."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in shown:
        key = (result.data, result.split, result.count, result.eps, result.clean, tuple(result.certified.items()))
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def _entry(results: Sequence[Result]) -> dict[str, Any]:
    """Return the data set and the accuracies of evaluations that differ only in the attack, as the hub lists them."""
    result = results[0]
    at = f"at ε = {format_epsilon(result.eps)}"
    shares = {
        "clean": result.clean,
        **{f"under {one.attack} {at}": one.attacked for one in results},
        **{f"robust, decided exactly {at}": one.exact.robust for one in results if one.exact},
        **{f"certified by {name} {at}": share for name, share in result.certified.items()},
    }
    metrics = [{"type": "accuracy", "name": name, "value": round(100 * share, 2)} for name, share in shares.items()]
    data = {"name": _title(result.data), "type": HUB_SETS.get(result.data, result.data), "split": result.split}
    return {"task": {"type": "image-classification"}, "dataset": data, "metrics": metrics}


def _measured(results: Results) -> Accuracies | None:
    """Return the accuracies on the test images at the end of the training."""
    return results.training.test if results.training else None


def _lead(results: Results, shown: Sequence[Result]) -> str:
    """Return what the net is, with its certified accuracy on the largest test set.

    It is the accuracy at the epsilon for which the net was trained, or else at the smallest evaluated epsilon.
    """
    measured = _measured(results)
    aims = list(measured.certified) if measured else []
    tests = [result for result in shown if result.split == "test" and result.eps > 0]
    if not tests:
        return "An image classifier with certified robustness: each prediction comes with a certified radius."
    best = max(tests, key=lambda result: (result.count, result.eps in aims[:1], -result.eps))
    return (
        f"An image classifier with certified robustness. On {_title(best.data)}, {_percent(best.best_certified)} % of "
        f"{best.count:,} test images are classified correctly, and no change of at most {format_epsilon(best.eps)} in "
        f"each pixel alters their class ({best.guarantee})."
    )


def _training(results: Results, recipe: str) -> str:
    if (training := results.training) is None:
        return _cell(recipe) or "not recorded"
    machine = f" on {'a CPU' if training.device == 'cpu' else 'a GPU'}" if training.device else ""
    cost = f"{training.epochs:,} epochs in {training.seconds:,.0f} s{machine}, seed {training.seed}"
    return f"{cost}; {_cell(recipe)}" if recipe else cost


def _results(results: Results, shown: Sequence[Result], otherwise: str) -> str:
    """Return a table with a row for each data set and ε, or else the accuracies at the end of the training, in percent.

    Each attack and each certificate has a column.
    """
    if shown:
        certificates = list(dict.fromkeys(name for result in shown for name in result.certified))
        attacks = list(dict.fromkeys(str(result.attack) for result in shown))
        exact = ["exact"] if any(result.exact for result in shown) else []
        header = ["data", "images", "ε", "clean", *attacks, *exact]
        rows = [[*header, *(f"certified by {name}" for name in certificates)]]
        rows.append(["---", *["---:"] * (len(rows[0]) - 1)])
        for same in _together(shown):
            result, attacked = same[0], {str(one.attack): one.attacked for one in same}
            named = [f"{_cell(_title(result.data))}, {result.split}", f"{result.count:,}", format_epsilon(result.eps)]
            shares = map(_percent, (result.clean, *map(attacked.get, attacks)))
            decided = [_exact(next((one for one in same if one.exact), result))] if exact else []
            rows.append([*named, *shares, *decided, *(_percent(result.certified.get(name)) for name in certificates)])
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        promises = "; ".join(dict.fromkeys(result.guarantee for result in shown))
        about = f"Accuracy in % of all images: unchanged (clean), under attack, and certified at ε ({promises})."
        if exact:
            about += (
                " Exact: images for which it is proven that no change of at most ε alters the class; for every other "
                "one an image that changes the class was found"
            )
            undecided = any(result.exact and result.exact.undecided for result in shown)
            about += ", except for images that were not decided, which are shown as a range." if undecided else "."
        return f"{table}\n\n{about}"
    if measured := _measured(results):
        certified = (f"certified {_percent(s)} at ε = {format_epsilon(e)}" for e, s in measured.certified.items())
        accuracies = ", ".join((f"clean {_percent(measured.clean)}", *certified))
        return f"Accuracy in % on the test images at the end of the training, rounding ignored: {accuracies}."
    return otherwise or "The model was saved without results."


def _exact(result: Result) -> str:
    """Return the exact accuracy, as a range if some images are undecided."""
    if result.exact is None:
        return ""
    least, most = result.exact.robust, result.exact.robust + result.exact.undecided
    return _percent(least) if least == most else f"{_percent(least)} to {_percent(most)}"


def _cell(text: str) -> str:
    """Return a text that can stand in a cell of a table.

    >>> _cell("a|b")
    'a\\\\|b'
    """
    return " ".join(text.split()).replace("|", "\\|")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
