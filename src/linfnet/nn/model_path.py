"""Find the folder of a model: a given folder, a model of the package, or a model on the Hugging Face hub."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from linfnet.data import Conversion, parse_size
from linfnet.data.catalog import check_names
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, nearest, printable, require
from linfnet.files import make_folder, read_table, replacing

# Contains one folder for each model of the package.
PRETRAINED = Path(__file__).parent / "pretrained"
# The prefix is required so that a mistyped path is never sent over the network. (`Path` removes one of the slashes.)
PREFIXES = ("hf://", "hf:/")


def pretrained_names() -> tuple[str, ...]:
    """Return the names of the models in the package."""
    return tuple(sorted(folder.name for folder in PRETRAINED.iterdir()))


def find_model(name: Path | str) -> Path:
    """Return the folder of a model: the path itself, or the model of this name in the package or on the hub.

    `hf://user/name` is downloaded into the cache of the hub: only the weights and the config, no code and no pickles.
    """
    text = str(name)
    for prefix in PREFIXES:
        if text.startswith(prefix):
            return _download(text.removeprefix(prefix))
    if not Path(name).exists() and text in pretrained_names():
        return PRETRAINED / text
    return Path(name)


def packaged_hint(path: Path) -> str:
    """Return a hint for an error message if the path is the name of a packaged model, otherwise an empty string."""
    if str(path) not in pretrained_names():
        return ""
    commands = "linfnet evaluate, certify, attack, predict, export and serve"
    results = f"linfnet evaluate {path} --out DIR writes a folder for linfnet report and compare"
    return f"; the model of this name in the package has no run folder: use it with {commands}; {results}"


def check_model(folder: Path) -> None:
    """Raise an error if a folder has no model; it lists the models inside the folder, if there are any."""
    if not folder.is_dir():
        models = ", ".join(pretrained_names())
        raise LinfnetError(
            f"{folder} is not a folder; expected a run, a folder with config.json and model.safetensors, "
            f"hf://user/name, or a model of the package: {models}{nearest(str(folder), pretrained_names())}"
        )
    if any((folder / name).exists() for name in ("config.json", "recipe.toml")):
        return
    inside = sorted(entry for entry in folder.iterdir() if (entry / "config.json").is_file())
    shown = ", ".join(map(str, inside[:5])) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
    hint = f"; it contains the models {shown}: give one of them" if inside else ""
    raise LinfnetError(f"{folder} is not a model: it has no config.json{hint}")


@dataclass(frozen=True)
class KnownData:
    """What the config.json of a model says about its data."""

    data: str | None = None
    """The name or the path of the data set."""
    eps: tuple[Fraction, ...] = ()
    """The epsilons at which the model is evaluated."""
    conversion: Conversion = field(default_factory=Conversion)
    """Of the image files of own data."""
    seed: int = 0
    """Of the split of own data."""

    def to_json(self) -> dict[str, Any]:
        """Return the keys of config.json, without settings of own data that have the default value."""
        size = self.conversion.resize
        height, width = size if isinstance(size, tuple) else (size, size)
        own = {"resize": size and f"{height}x{width}", "mode": self.conversion.mode, "split_seed": self.seed}
        table = {"data": self.data, "eps": list(map(format_epsilon, self.eps))}
        return table | {key: value for key, value in own.items() if value}


def known_data(folder: Path) -> KnownData:
    """Return what the config.json of a model says about its data; nothing if there is no such file."""
    path = folder / "config.json"
    table = read_table(path) if path.is_file() else {}
    data, epsilons = table.get("data"), cast(list[Any], table.get("eps") or [])
    if not isinstance(data, str):
        return KnownData()
    size, seed = table.get("resize"), table.get("split_seed", 0)
    if not isinstance(seed, int):
        raise LinfnetError(f"{path}: split_seed is {seed!r}; expected a whole number")
    conversion = Conversion(None if size is None else parse_size(str(size), f"{path}: resize"), table.get("mode"))
    return KnownData(data, tuple(parse_epsilon(str(eps), f"{path}: eps") for eps in epsilons), conversion, seed)


def check_copy(model: Path, folder: Path, partial: str) -> None:
    """Raise an error if `copy_model` would replace another model in a folder, or add one to other files.

    A killed evaluation may have left temporary files, and the folder with this name of its partial results.
    """
    weights = folder / "model.safetensors"
    if weights.exists() and weights.read_bytes() != (model / "model.safetensors").read_bytes():
        raise LinfnetError(f"{folder} contains another model; choose another folder")
    entries = folder.iterdir() if folder.is_dir() and not weights.exists() else ()
    if not all(entry.name == partial or entry.match(".*.tmp") for entry in entries):
        raise LinfnetError(f"{folder} contains other files; choose a new or empty folder")


def copy_model(model: Path, folder: Path) -> None:
    """Copy the weights, the config and the model card of a model into another folder."""
    make_folder(folder)
    for name in ("model.safetensors", "config.json", "README.md"):
        if (model / name).is_file() and not (folder / name).exists():
            with replacing(folder / name) as temporary:
                shutil.copyfile(model / name, temporary)


def system_name(config: Mapping[str, Any]) -> str:
    """Return the name of the system in a config.json. Old files do not have it: their nets are of system `linf`."""
    return str(config.get("system", "linf"))


def class_names(model: Path, classes: int) -> list[str]:
    """Return the class names in the config.json of a model, or the class numbers if it has no names."""
    names: Any = read_table(model / "config.json").get("class_names") or [str(k) for k in range(classes)]
    if not isinstance(names, list) or len(cast(list[Any], names)) != classes:
        raise LinfnetError(f"{model / 'config.json'}: class_names is not a list of {classes} names")
    texts = [str(name) for name in cast(list[Any], names)]
    try:
        check_names(texts)
    except ArgumentError as error:
        raise LinfnetError(f"{model / 'config.json'}: {error}") from None
    return list(map(printable, texts))


def _download(repository: str) -> Path:
    huggingface_hub: Any = require("huggingface_hub", "hub")
    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=["config.json", "model.safetensors"])
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise LinfnetError(f"{repository} cannot be downloaded from the hub: {str(error).splitlines()[0]}") from None
    return Path(folder)
