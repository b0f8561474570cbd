"""The user's own net in a run: its description in env.json, by which a resumed run recognises it, and its weights."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linfnet.errors import ArgumentError
from linfnet.files import write_tensors
from linfnet.nn import Classifier
from linfnet.results import Results, TrainingResult
from linfnet.systems import SYSTEMS


def describe_net(net: Classifier) -> dict[str, Any]:
    """Return what the weights do not say about a net: input shape, normalisation and a digest of the structure."""
    with net.at_infinity():  # the text contains p
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(net))
    shapes = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in net.state_dict().items()]
    return {
        "image_shape": list(net.image_shape),
        "mean": net.normalize.mean.flatten().tolist(),
        "std": net.normalize.std.item(),
        "structure": hashlib.sha256("\n".join([text, *shapes]).encode()).hexdigest(),
    }


def check_same_net(folder: Path, stored: dict[str, Any], net: Classifier | None) -> None:
    """Raise an error if a net is not like the one with which a run was started.

    Args:
        folder: the run folder.
        stored: the description of the net in its env.json; empty for the net of the recipe, and in older versions.
        net: the user's own net, or None.
    """
    if net is None:
        if stored:
            raise ArgumentError(f"net is None; expected the own net with which the run in {folder} was started")
        return
    for key, now in describe_net(net).items():
        before = stored.get(key, now)
        if before != now:
            values = "another structure" if key == "structure" else f"{key} {now}; the run has {key} {before}"
            raise ArgumentError(
                f"net is not the net with which the run in {folder} was started: it has {values}; pass the same net, "
                "or another folder"
            )


def write_net(folder: Path, net: Classifier, class_names: Sequence[str], result: TrainingResult) -> None:
    """Write a trained net as a model folder, or only its weights if it is of no system: its code cannot be saved."""
    system = getattr(net, "system", "")
    if system in SYSTEMS and isinstance(net, SYSTEMS[system].net_type):
        net.save(folder, class_names=class_names, results=Results(result))
    else:
        write_tensors(folder / "model.safetensors", net.state_dict(), {"format": "pt"})
