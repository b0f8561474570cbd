"""The weights of a net: their number, copying them from the tensors of a file, and the config that belongs to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from linfnet.errors import LinfnetError
from linfnet.files import DIGEST, log_unchecked, stored_digest

# The key of config.json with the digest of the model.safetensors to which it belongs.
WEIGHTS = "weights"


def weights_digest(folder: Path) -> str:
    """Return the hexadecimal digest of model.safetensors that is stored in its metadata; empty in old files."""
    return stored_digest(folder / "model.safetensors").rpartition(":")[2]


def check_pair(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise an error if a config.json belongs to other weights than those in its folder.

    Weights of the same shapes would otherwise be loaded with the mean, the std or the class names of another model. A
    config.json of an older version does not name its weights; this is logged.
    """
    named, found = config.get(WEIGHTS), weights_digest(folder)
    if named is None and found:
        log_unchecked(f"{folder / 'config.json'} does not name its weights: those of another model would be accepted")
    elif named not in (None, found):
        raise LinfnetError(
            f"{folder / 'config.json'} and model.safetensors do not belong together: one is from another model; copy "
            f"both again, or after a change of the weights delete the keys {WEIGHTS!r} and {DIGEST!r}"
        )


def count_parameters(net: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in net.parameters())


def load_weights(net: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy named tensors into a net; raise an error that names any missing, unknown or mismatched tensor."""
    check_weights(net, tensors, source)
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise LinfnetError(f"{source}: {name!r} contains NaN or infinity")
    net.load_state_dict(tensors)


def check_weights(net: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Raise an error that names a tensor which a net lacks, or which has another shape or dtype than in the net."""
    wanted = net.state_dict()
    for name in sorted(wanted.keys() - tensors.keys()):
        raise LinfnetError(f"{source} lacks {name!r}: it belongs to another net")
    for name in sorted(tensors.keys() - wanted.keys()):
        raise LinfnetError(f"{source} contains {name!r}, which the net does not have: it belongs to another net")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            got, want = tuple(tensor.shape), tuple(wanted[name].shape)
            raise LinfnetError(f"{source}: {name!r} has shape {got}, the net expects {want} (other images or width?)")
        if tensor.dtype != wanted[name].dtype:
            raise LinfnetError(f"{source}: {name!r} has dtype {tensor.dtype}, the net expects {wanted[name].dtype}")
