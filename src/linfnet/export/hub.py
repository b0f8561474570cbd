"""Model cards with results, and models on the Hugging Face hub (needs the extra `hub`)."""

import importlib
from pathlib import Path
from typing import Any

from linfnet.errors import LinfnetError
from linfnet.files import read_json, write_text
from linfnet.nn import count_parameters
from linfnet.nn.model_card import model_card
from linfnet.systems import load_model
from linfnet.train import read_results

FILES = ("model.safetensors", "config.json", "README.md")


def write_card(folder: Path) -> Path:
    """Write the model card of a folder anew, with all that its results.json holds by now."""
    net = load_model(folder)
    card = model_card(read_json(folder / "config.json"), net.describe(), count_parameters(net), read_results(folder))
    write_text(folder / "README.md", card)
    return folder / "README.md"


def push_to_hub(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload the model of a folder (weights, config, model card; nothing else) as `user/name`; returns its address."""
    try:
        huggingface_hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise LinfnetError("the hub needs huggingface_hub: pip install 'linfnet[hub]'") from None
    # Without results.json a card may hold what the net was saved with, and that would be lost.
    if (folder / "results.json").is_file() or not (folder / "README.md").is_file():
        write_card(folder)
    api: Any = huggingface_hub.HfApi()
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(FILES))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{name} cannot be uploaded: {str(error).splitlines()[0]}") from None
    return str(address)
