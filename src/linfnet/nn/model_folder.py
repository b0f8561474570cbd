"""Write a net into a model folder and read it: `config.json`, `model.safetensors` and the model card `README.md`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from linfnet.errors import ArgumentError, LinfnetError, printable
from linfnet.files import DIGEST, read_tensors, write_table, write_tensors, write_text
from linfnet.nn.model_card import model_card
from linfnet.nn.model_path import system_name
from linfnet.nn.weights import WEIGHTS, check_pair, check_weights, count_parameters, load_weights, weights_digest
from linfnet.results import Results

if TYPE_CHECKING:  # classifier imports this module
    from linfnet.nn.classifier import Classifier

Net = TypeVar("Net", bound="Classifier")

FORMAT = "linfnet-model-1"
# The metadata of model.safetensors.
METADATA = {"format": "pt", "linfnet": FORMAT}
# Keys of config.json that are not arguments of the constructor: the data of packaged and compressed models
# (`KnownData`), and the figures of packaged models (`ModelInfo`).
ABOUT = ("format", "system", "class_names", "data", "eps", "resize", "mode", "split_seed", "measured", WEIGHTS, DIGEST)


def write_model(net: "Classifier", folder: Path, class_names: Sequence[str], results: Results | None) -> None:
    """Write a float32 net with its class names and results; see `Classifier.save`."""
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            dtype = tensor.dtype
            raise ArgumentError(f"{name!r} of the net has dtype {dtype}; expected torch.float32: save net.float()")
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", net.saved_tensors(), METADATA)
    names = list(map(printable, class_names))
    config = {**net.config(), "class_names": names, WEIGHTS: weights_digest(folder)}
    write_table(folder / "config.json", config)
    name = folder.resolve().name
    about = (config, net.describe(), net.guarantee, count_parameters(net))
    write_text(folder / "README.md", model_card(*about, results, name=name, source=name))


def read_model(kind: type[Net], folder: Path, config: Mapping[str, Any]) -> Net:
    """Return the net of a folder whose config.json has already been read; what it allocates fits the weights."""
    source = folder / "model.safetensors"
    tensors = read_tensors(source)[0]
    if kind.__module__.startswith("linfnet."):  # a user's net may not be built without memory
        hidden: Any = config.get("hidden")
        if isinstance(hidden, list) and len(cast(list[Any], hidden)) >= max(len(tensors), 1):
            raise LinfnetError(f"{source} lacks the weights of {len(cast(list[Any], hidden))} layers")
        with torch.device("meta"):
            check_weights(kind.from_config(config), tensors, source)
    net = kind.from_config(config)
    load_weights(net, tensors, source)
    check_pair(folder, config)
    return net


def build_net(kind: type[Net], config: Mapping[str, Any]) -> Net:
    """Return a net with new weights from a dictionary that `Classifier.config` returned."""
    arguments = arguments_of(kind, config)
    try:
        net = kind(**arguments)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise LinfnetError(f"the config does not describe a net: {str(error).splitlines()[0]}") from None
    check_complete(net, config)
    return net


def arguments_of(kind: type["Classifier"], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the constructor in a config; raise an error if it describes a net of another kind."""
    if config.get("format") != FORMAT:
        raise LinfnetError(f"the config's format is {config.get('format')!r}; expected {FORMAT!r}")
    if (system := system_name(config)) != kind.system:
        raise LinfnetError(f"the config describes a net of system {system!r}; expected {kind.system!r}")
    return {key: value for key, value in config.items() if key not in ABOUT}


def check_complete(net: "Classifier", config: Mapping[str, Any]) -> None:
    """Raise an error unless a config has exactly the arguments that the config of the net has; p is not saved.

    A missing value must not be replaced by a default: the result would be a different net.
    """
    saved = net.config().keys() - {"system"}
    for name in sorted(saved - config.keys()):
        raise LinfnetError(f"the config does not describe a net: it lacks {name!r}")
    for name in sorted(config.keys() - saved - {*ABOUT}):
        raise LinfnetError(f"the config contains {name!r}, which is not part of the config of a saved net")
