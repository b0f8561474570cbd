"""Counts of the deciding weights of a dense layer, by a CUDA kernel."""

import math

from torch import Tensor

from linfnet.ops.cuda.layout import DEPTH, TILE, aligned
from linfnet.ops.cuda.nvrtc import Kernel, Launcher

COUNT = Kernel("deciding.cu", "count_deciding", (("TILE", TILE), ("DEPTH", DEPTH)))


def count(launcher: Launcher, x: Tensor, w: Tensor, first: Tensor, second: Tensor | None) -> None:
    """Add to `first` and `second` as described in `linfnet.ops.count_deciding`; x is contiguous and not empty."""
    (n, features), out = x.shape, w.shape[0]
    launcher.launch(
        x.device, COUNT, (math.ceil(n / TILE), math.ceil(out / TILE), 1),
        x=x, w=w, first=first, second=second, n=n, out=out, features=features, aligned=aligned(features, x, w),
    )  # fmt: skip
