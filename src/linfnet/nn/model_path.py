"""Where a model lies: a folder, the package itself, or a name on the Hugging Face hub."""

import importlib
from pathlib import Path
from typing import Any, cast

from linfnet.errors import LinfnetError
from linfnet.files import read_json

# Models that come with the package, each a folder.
PRETRAINED = Path(__file__).parent / "pretrained"
# A prefix, so that a mistyped path is never sent over the network. (A `Path` has lost one of its slashes.)
PREFIXES = ("hf://", "hf:/")


def pretrained_names() -> tuple[str, ...]:
    """The models that come with the package.

    >>> "mnist-small" in pretrained_names()
    True
    """
    return tuple(sorted(folder.name for folder in PRETRAINED.iterdir())) if PRETRAINED.is_dir() else ()


def find_model(name: Path | str) -> Path:
    """The folder of a model: the path itself, or what the package or the hub has under that name.

    `hf://user/name` is downloaded into the hub's cache first: weights and config alone, no code and no pickles.
    """
    text = str(name)
    for prefix in PREFIXES:
        if text.startswith(prefix):
            return _download(text.removeprefix(prefix))
    if not Path(name).exists() and text in pretrained_names():
        return PRETRAINED / text
    return Path(name)


def packaged_hint(path: Path) -> str:
    """What to say of a path that is no folder but the name of a net in the package; nothing of others.

    >>> packaged_hint(Path("mnist-big"))
    ''
    """
    if str(path) not in pretrained_names():
        return ""
    takers = "linfnet certify, attack, predict, export and serve"
    return f"; the net of that name in the package has no run: {takers} take it"


def class_names(model: Path, classes: int) -> list[str]:
    """The names of the classes in a model's config.json; their numbers if it has none."""
    names: Any = read_json(model / "config.json").get("class_names") or [str(k) for k in range(classes)]
    if not isinstance(names, list) or len(cast(list[Any], names)) != classes:
        raise LinfnetError(f"{model / 'config.json'}: class_names is not a list of {classes} names")
    return [str(name) for name in cast(list[Any], names)]


def _download(repository: str) -> Path:
    try:
        huggingface_hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise LinfnetError("the hub needs huggingface_hub: pip install 'linfnet[hub]'") from None
    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=["config.json", "model.safetensors"])
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{repository} cannot be fetched from the hub: {str(error).splitlines()[0]}") from None
    return Path(folder)
