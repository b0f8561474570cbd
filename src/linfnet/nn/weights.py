"""The weights of a net: their number, and copying them from the tensors of a file."""

from pathlib import Path

from torch import Tensor, nn

from linfnet.errors import LinfnetError


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
