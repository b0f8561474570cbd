"""Evaluation by several processes: each evaluates complete batches, and their results are joined field by field."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from linfnet.distributed.group import Group

T = TypeVar("T")


def _sum_by_key(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: sum(part[key] for part in parts) for key in parts[0]}


# Metadata for dataclass fields that contain durations. Other fields are joined according to the type of their value.
LONGEST: dict[str, Any] = {"join": max}
SUMMED: dict[str, Any] = {"join": _sum_by_key}


def own_part(images: int, batch: int, group: Group) -> slice:
    """Return the slice of the images for this process: complete batches, the same as in a single process.

    >>> [own_part(69, 20, Group(rank, 3)) for rank in range(3)]
    [slice(0, 40, None), slice(40, 60, None), slice(60, 69, None)]
    """
    batches = group.share(math.ceil(images / batch))
    return slice(min(batches.start * batch, images), min(batches.stop * batch, images))


def gather(part: T, group: Group) -> T:
    """Return the joined parts of all processes in every process; with several processes the tensors are on the CPU."""
    return part if group.size == 1 else join(group.all(join([part], lambda tensors: tensors[0].cpu())))


def join(parts: Sequence[Any], concatenate: Callable[[list[Tensor]], Tensor] = torch.cat) -> Any:
    """Join results for consecutive images: tensors are concatenated, by default along their first dimension.

    Dataclasses, tuples and dictionaries are joined item by item; the metadata of a field can contain another function.
    Values of other types must be the same in all parts.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return concatenate(list(parts))
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts], concatenate) for key in cast(dict[Any, Any], first)}
    if isinstance(first, tuple):
        return tuple(join(items, concatenate) for items in zip(*parts, strict=True))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(first):
            rule = field.metadata.get("join", partial(join, concatenate=concatenate))
            joined[field.name] = rule([getattr(part, field.name) for part in parts])
        return dataclasses.replace(first, **joined)
    return first
