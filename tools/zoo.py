"""The models of the package, from records/zoo.json: their cards, the figures in config.json, and a table."""

from pathlib import Path
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.export.hub import describe_recipe
from linfnet.files import read_table, table_text
from linfnet.nn import SparseNet, count_parameters
from linfnet.nn.model_card import model_card
from linfnet.nn.model_path import PRETRAINED
from linfnet.nn.packaged import MEASURED
from linfnet.recipes import recipe_from_toml
from linfnet.results import PGD_100, AttackSettings, Result, Results, results_from_json
from linfnet.systems import load_model
from tools.accuracy_tables import DATA
from tools.records import link, percent, read_record, table

SMOOTHED = AttackSettings("smoothed", 100)


def results_of(entry: dict[str, Any]) -> Results:
    """Return the results in the entry of a model: those of its training, and the evaluations of the packaged net."""
    return results_from_json(entry["results"])


def on_all_images(entry: dict[str, Any]) -> dict[AttackSettings, Result]:
    """Return the evaluations of all test images, by attack."""
    return {one.attack: one for one in results_of(entry).evaluations if one.limit is None}


def figures(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that config.json contains: the fields of `ModelInfo` that were measured."""
    found = on_all_images(entry)
    pgd = found[PGD_100]
    return {
        "clean": pgd.clean,
        "pgd": pgd.attacked,
        "smoothed": found[SMOOTHED].attacked if SMOOTHED in found else None,
        "certified": pgd.best_certified,
        "milliseconds": entry["milliseconds"],
        "processor": entry["environment"]["cpu"],
        "size": entry["size"],
        "sha256": entry["sha256"],
    }


def card(name: str, entry: dict[str, Any]) -> str:
    """Return the model card of a packaged model."""
    folder = PRETRAINED / name
    net, recipe = load_model(folder), describe_recipe(recipe_from_toml(entry["recipe"], name, name))
    if isinstance(net, SparseNet):
        recipe += f"; then compressed from {entry['dense_connections']:,} connections"
    more = {
        "file": f"model.safetensors, {entry['size']:,} bytes, SHA-256 `{entry['sha256']}`",
        "time": f"{entry['milliseconds']:.2f} ms for one image on one core ({entry['environment']['cpu']})",
    }
    options: dict[str, Any] = {"name": name, "source": name, "recipe": recipe, "licence": "mit", "more": more}
    config = read_table(folder / "config.json")
    return model_card(config, net.describe(), net.guarantee, count_parameters(net), results_of(entry), **options)


def model_files() -> dict[Path, str]:
    """Return the texts of README.md and config.json of each model in the record."""
    texts: dict[Path, str] = {}
    for name, entry in read_record("zoo").items():
        folder = PRETRAINED / name
        config = {**read_table(folder / "config.json"), MEASURED: figures(entry)}
        texts[folder / "config.json"] = table_text(config)
        texts[folder / "README.md"] = card(name, entry)
    return texts


def zoo() -> str:
    """Return the table of the models of the package."""
    rows: list[list[str]] = []
    for name, entry in read_record("zoo").items():
        found = figures(entry)
        pgd = on_all_images(entry)[PGD_100]
        shares = (percent(found[key]) for key in ("clean", "pgd", "smoothed", "certified"))
        costs = f"{found['size'] / 1e6:.2f}", f"{found['milliseconds']:.2f}"
        rows.append([f"`{name}`", f"{DATA[pgd.data]}, {format_epsilon(pgd.eps)}", *shares, *costs])
    head = ["model", "data, ε", "clean", "PGD-100", "smoothed PGD", "certified", "MB", "ms per image"]
    processors = ", ".join(dict.fromkeys(entry["environment"]["cpu"] for entry in read_record("zoo").values()))
    return table(head, rows) + f"\nTime of one image on one core, {processors} ({link('zoo.json')}).\n"
