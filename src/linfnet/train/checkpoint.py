"""Checkpoints: model, optimizer, random state and the place in the schedule, as safetensors, never half-written."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from linfnet.distributed.group import Ranks
from linfnet.errors import LinfnetError
from linfnet.files import read_tensors, write_tensors
from linfnet.nn import load_weights

FORMAT = "linfnet-checkpoint-1"


@dataclass
class Progress:
    """How far a run has come: steps taken, and the seconds they took, over all its sittings."""

    step: int = 0
    seconds: float = 0.0


def save_checkpoint(
    folder: Path,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    record: Tensor,
    progress: Progress,
    *,
    recipe_digest: str,
    keep: int,
) -> Path:
    """Write `step-N.safetensors` and delete all but the newest `keep`.

    Those of later steps go, too: the run went on from an earlier one because they were damaged.
    """
    tensors = {f"model.{name}": tensor for name, tensor in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{name}.{key}"] = value
    tensors |= {"record": record, "random": torch.get_rng_state()}
    path = folder / f"step-{progress.step:09d}.safetensors"
    metadata = {"linfnet": FORMAT, "progress": json.dumps(asdict(progress)), "recipe": recipe_digest}
    write_tensors(path, tensors, metadata)
    found = find_checkpoints(folder)
    here = found.index(path)
    for other in found[:here] + found[here + keep :]:
        other.unlink(missing_ok=True)
    return path


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def load_checkpoint(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, record: Tensor, recipe_digest: str
) -> Progress:
    """Put a checkpoint back into the net, the optimizer and the record; nothing is changed if it does not fit."""
    tensors, metadata = read_tensors(path)
    if metadata.get("linfnet") != FORMAT:
        raise LinfnetError(f"{path} is not a checkpoint of this library")
    try:
        progress = Progress(**json.loads(metadata["progress"]))
        kept_record, random = tensors.pop("record"), tensors.pop("random")
    except (KeyError, TypeError, ValueError):
        raise LinfnetError(f"{path} lacks parts of a checkpoint") from None
    if kept_record.shape != record.shape:
        raise LinfnetError(f"{path} was written with other data or another batch size")
    model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    moments: dict[Tensor, dict[str, Tensor]] = {}
    for name, parameter in net.named_parameters():
        prefix = f"optimizer.{name}."
        state = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        for key, tensor in state.items():
            if key != "step" and tensor.shape != parameter.shape:
                raise LinfnetError(f"{path}: {prefix}{key} has shape {tuple(tensor.shape)}: it belongs to another net")
            state[key] = tensor.to(parameter.device)
        if not state and parameter.requires_grad:
            raise LinfnetError(f"{path} lacks parts of a checkpoint: the optimizer's state of {name}")
        moments[parameter] = state
    if metadata.get("recipe") != recipe_digest:
        raise LinfnetError(f"{path} was written by a run with another recipe")
    load_weights(net, model, path)
    record.copy_(kept_record)
    optimizer.state.clear()
    optimizer.state.update(moments)
    torch.set_rng_state(random)
    return progress


def load_newest(
    folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer, record: Tensor, recipe_digest: str
) -> tuple[Progress, list[str]]:
    """Load the newest checkpoint that is whole; the list says what was wrong with newer ones.

    A run that ended before its first checkpoint starts again: by its seed it is the same run.
    """
    complaints: list[str] = []
    for path in find_checkpoints(folder):
        try:
            return load_checkpoint(path, net, optimizer, record, recipe_digest), complaints
        except LinfnetError as error:
            complaints.append(str(error))
    if complaints:
        raise LinfnetError(complaints[0])
    return Progress(), []


def load_newest_on_all(
    folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer, record: Tensor, recipe_digest: str, ranks: Ranks
) -> tuple[Progress, list[str]]:
    """`load_newest` by the first process, which gives the state to all: the others need not see the folder."""
    found: tuple[Progress, list[str]] = ranks.from_first(
        lambda: load_newest(folder, net, optimizer, record, recipe_digest)
    )
    if ranks.size > 1 and found[0].step:
        layout: dict[str, list[str]] = ranks.from_first(
            lambda: {name: list(optimizer.state[parameter]) for name, parameter in net.named_parameters()}
        )
        for name, parameter in net.named_parameters():
            if not ranks.first:
                single = torch.zeros((), device=parameter.device)
                optimizer.state[parameter] = {
                    key: single.clone() if key == "step" else torch.zeros_like(parameter) for key in layout[name]
                }
            ranks.spread_(optimizer.state[parameter][key] for key in layout[name])
        ranks.spread_([*net.state_dict().values(), record])
    return found
