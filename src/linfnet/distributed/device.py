"""The device on which a process computes."""

import re

import torch

from linfnet.distributed.group import launched, own_device
from linfnet.errors import ArgumentError

Device = torch.device | str | None


def choose_device(device: Device, *, shared: bool = False) -> torch.device:
    """Return a device that torch can use, or raise an error.

    Args:
        device: `cpu`, `cuda` or `cuda:INDEX`; None and `auto` select a GPU if there is one. A `torch.device` of another
            type is returned as it is.
        shared: under torchrun the processes share the work, so each of them uses a different GPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if isinstance(device, torch.device) and device.type not in ("cpu", "cuda"):
        return device
    name = "auto" if device is None else str(device)
    if shared and launched():
        name = own_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda)(:\d{1,3})?", name):
        raise ArgumentError(f"device is {name!r}; expected auto, cpu, cuda or cuda:INDEX")
    chosen = torch.device(name)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(f"device is {name!r}, but torch cannot use this GPU on this machine")
    return chosen
