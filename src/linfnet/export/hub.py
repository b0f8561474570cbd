"""Model cards with results, and uploads to the Hugging Face hub (needs the extra `hub`)."""

from pathlib import Path
from typing import Any

from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError, require
from linfnet.files import read_table, write_text
from linfnet.nn import Classifier, count_parameters
from linfnet.nn.model_card import model_card
from linfnet.recipes import Recipe
from linfnet.results import read_results
from linfnet.systems import has_effect, load_model
from linfnet.train import RunFolder


def write_card(folder: Path, net: Classifier, *, source: str | None = None, measured: str = "") -> Path:
    """Write the model card of a folder with its results and recipe.

    Args:
        folder: the model folder.
        net: the net of the folder.
        source: the argument of `load_model` in the example. Default: the name of the folder.
        measured: a sentence with accuracies that is shown if the folder has no results.
    """
    # The net's own values replace those of the file, which may have another form.
    config, results = {**read_table(folder / "config.json"), **net.config()}, read_results(folder)
    recipe = describe_recipe(RunFolder.open(folder).recipe) if (folder / "recipe.toml").is_file() else ""
    source = source or folder.resolve().name
    options: dict[str, Any] = {
        "name": source.rpartition("/")[2],
        "source": source,
        "recipe": recipe,
        "measured": measured,
    }
    card = model_card(config, net.describe(), net.guarantee, count_parameters(net), results, **options)
    write_text(folder / "README.md", card)
    return folder / "README.md"


def describe_recipe(recipe: Recipe) -> str:
    """Return the most important settings of a recipe."""
    schedule, optimizer = recipe.schedule, recipe.optimizer
    parts = [f"recipe {recipe.name}"]
    if has_effect(recipe, "schedule.p_end"):
        constant, rising, infinite = schedule.epochs
        parts.append(
            f"p = {schedule.p_start:g} for {constant} epochs, rising to {schedule.p_end:g} for {rising}, "
            f"infinite for {infinite}"
        )
    if has_effect(recipe, "loss"):
        parts.append(f"loss {recipe.loss.name}, θ = {format_epsilon(recipe.loss.theta)}")
    return "; ".join([*parts, f"Adam, learning rate {optimizer.lr:g}, batches of {optimizer.batch}"])


def push_to_hub(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload the weights, config and model card in a folder as `user/name`, and return the address of the model."""
    huggingface_hub: Any = require("huggingface_hub", "hub")
    # Without accuracies in results.json, keep the existing card: it may contain those with which the net was saved.
    results = read_results(folder)
    known = results.evaluations or (results.training and results.training.test)
    if known or not (folder / "README.md").is_file():
        write_card(folder, load_model(folder), source=f"hf://{name}")
    api: Any = huggingface_hub.HfApi()
    files = ["model.safetensors", "config.json", "README.md"]
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=files)
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{name} cannot be uploaded: {str(error).splitlines()[0]}") from None
    return str(address)
