"""The C++ kernel of the complete search in `linfnet.certificates.exact`; the source is `csrc/search.cpp`."""

import importlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

_kernels: Any
try:
    _kernels = importlib.import_module("linfnet.ops._cpu")
except ImportError:
    _kernels = None

OUTCOMES = ("undecided", "robust", "broken")


def has_search() -> bool:
    """Return whether the kernel was compiled."""
    return hasattr(_kernels, "search")


def run_search(
    whole: Sequence[npt.NDArray[np.int64]],
    floats: Sequence[npt.NDArray[np.float32]],
    found: npt.NDArray[np.float32],
    own: int,
    rival: int,
    branches: int,
    seconds: float,
) -> tuple[Literal["undecided", "robust", "broken"], int]:
    """Search a reduced circuit; return the outcome and the number of branches. Other Python threads run meanwhile.

    Args:
        whole: kinds, starts, offsets and index of the circuit.
        floats: weight, low and high of the circuit, and the pixels of the original image.
        found: [pixels]: receives the image, if the outcome is `broken`.
        own, rival: the nodes of the two logits.
        branches, seconds: the budget.
    """
    arrays = [np.ascontiguousarray(array, np.int64) for array in whole]
    arrays += [np.ascontiguousarray(array, np.float32) for array in floats]
    addresses = [array.ctypes.data for array in (*arrays, found)]
    kinds, low, pixels = arrays[0], arrays[5], arrays[7]
    sizes = (len(kinds), len(low), len(pixels))
    outcome, used = _kernels.search(*addresses, *sizes, own, rival, branches, seconds)
    return cast(Any, OUTCOMES[outcome]), used
