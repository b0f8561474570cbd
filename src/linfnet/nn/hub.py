"""Where a model lies: a folder, or a name on the Hugging Face hub."""

import importlib
from pathlib import Path
from typing import Any

from linfnet.errors import LinfnetError

# A prefix, so that a mistyped path is never sent over the network.
PREFIX = "hf://"


def find_model(name: Path | str) -> Path:
    """The folder of a model; `hf://user/name` is downloaded into the hub's cache first, without code or pickles."""
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return Path(name)
    try:
        huggingface_hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise LinfnetError("the hub needs huggingface_hub: pip install 'linfnet[hub]'") from None
    repository = name.removeprefix(PREFIX)
    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=["config.json", "model.safetensors"])
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{repository} cannot be fetched from the hub: {str(error).splitlines()[0]}") from None
    return Path(folder)
