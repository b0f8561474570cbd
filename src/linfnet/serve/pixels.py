"""Posted JSON as pixels of the net's shape; the message of a refusal names the place that is wrong."""

import json
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from linfnet.serve.refusal import RefusedError


def json_limit(shape: tuple[int, int, int]) -> int:
    """The most bytes that the JSON of one image may have: 32 for each number, as many as any float needs.

    >>> json_limit((1, 28, 28))
    26112
    """
    return 1024 + 32 * shape[0] * shape[1] * shape[2]


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object with finite numbers."""
    try:
        value: Any = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {str(error).splitlines()[0][:100]}") from None
    if not isinstance(value, dict):
        raise RefusedError(400, f"the body is a JSON {type(value).__name__}; wanted an object")
    return cast(dict[str, Any], value)


def parse_pixels(request: dict[str, Any], shape: tuple[int, int, int]) -> Tensor:
    """float32 [C, H, W] in [0, 1] from {"pixels": nested lists}; the channels may be left out if there is one."""
    if "pixels" not in request:
        raise RefusedError(400, 'the body has no "pixels"')
    pixels = request["pixels"]
    if shape[0] == 1 and _is_matrix(pixels):
        pixels = [pixels]
    flat: list[float] = []
    _flatten(pixels, shape, "pixels", flat)
    return torch.tensor(flat, dtype=torch.float32).view(shape)


def parse_steps(request: dict[str, Any], default: int = 40, most: int = 200) -> int:
    """The PGD steps asked for."""
    for key in request:
        if key not in ("pixels", "steps"):
            raise RefusedError(400, f"the body has {key[:40]!r}; known are 'pixels' and 'steps'")
    steps = request.get("steps", default)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= most:
        raise RefusedError(400, f"steps is {json.dumps(steps)[:40]}; wanted a whole number from 1 to {most}")
    return steps


def _is_matrix(value: Any) -> bool:
    """Whether lists end after two levels."""
    rows = cast(list[Any], value) if isinstance(value, list) else []
    first = cast(list[Any], rows[0]) if rows and isinstance(rows[0], list) else []
    return bool(first) and not isinstance(first[0], list)


def _flatten(value: Any, shape: tuple[int, ...], place: str, into: list[float]) -> None:
    if not shape:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise RefusedError(400, f"{place} is {json.dumps(value)[:40]}; wanted a number from 0 to 1")
        into.append(float(value))
        return
    if not isinstance(value, list) or len(cast(list[Any], value)) != shape[0]:
        got = f"a list of {len(cast(list[Any], value))}" if isinstance(value, list) else type(value).__name__
        raise RefusedError(400, f"{place} is {got}; wanted lists of shape {' x '.join(map(str, shape))}")
    for index, part in enumerate(cast(list[Any], value)):
        _flatten(part, shape[1:], f"{place}[{index}]", into)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
