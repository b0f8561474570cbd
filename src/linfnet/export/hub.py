"""Model cards with results, and uploads to the Hugging Face hub (needs the extra `hub`)."""

from pathlib import Path
from typing import Any

from linfnet.errors import LinfnetError, require
from linfnet.files import read_json, write_text
from linfnet.nn import Classifier, count_parameters
from linfnet.nn.model_card import model_card
from linfnet.results import read_results
from linfnet.results.storage import RESULTS_FILE
from linfnet.systems import load_model


def write_card(folder: Path, net: Classifier) -> Path:
    """Write the model card of a folder with all results in the folder; `net` is the net of the folder."""
    card = model_card(read_json(folder / "config.json"), net.describe(), count_parameters(net), read_results(folder))
    write_text(folder / "README.md", card)
    return folder / "README.md"


def push_to_hub(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload the weights, config and model card in a folder as `user/name`, and return the address of the model."""
    huggingface_hub: Any = require("huggingface_hub", "hub")
    # Without results.json, keep the existing card: it may contain the results with which the net was saved.
    if (folder / RESULTS_FILE).is_file() or not (folder / "README.md").is_file():
        write_card(folder, load_model(folder))
    api: Any = huggingface_hub.HfApi()
    files = ["model.safetensors", "config.json", "README.md"]
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, allow_patterns=files)
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{name} cannot be uploaded: {str(error).splitlines()[0]}") from None
    return str(address)
