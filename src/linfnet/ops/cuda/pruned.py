"""Pruned kernels for larger p: they read only the features that can contribute, without host synchronisation.

A term contributes if (|d| / max |d|)^p >= 2^-30 p. Any other term changes the distance by less than 2^-30 of its value
and a gradient by less than p 2^-30 of its weight; rounding |d| / y to float32 already changes the gradient by p 2^-25.
The features that contribute for any row are found in one pass over the weights, from the range of each feature in the
batch, and are listed on the device. If the lists are too long, a flag on the device (`use_dense`) makes the dense
kernels compute the layer; otherwise the dense kernels return at once.

Training in float16 (see `half`) leaves out more terms (`HALF_BITS`). Above p = 64, the lists of its backward pass
contain only the features that contribute for a row of the batch, not those that might by their range.
"""

import contextlib
import math
from functools import cache, lru_cache

import torch
from torch import Tensor

from linfnet.ops.cuda import half, pruned_half
from linfnet.ops.cuda.dense import Dense, target_exponent
from linfnet.ops.cuda.half import HEAD, Half
from linfnet.ops.cuda.infinity import Infinity
from linfnet.ops.cuda.layout import (
    LANE_GROUP,
    SQUARE,
    Grid,
    Layer,
    aligned_parts,
    filled,
    line,
    row_groups,
    squares,
)
from linfnet.ops.cuda.nvrtc import Kernel, Launcher
from linfnet.ops.cuda.pruned_half import ListedGradients
from linfnet.ops.powers import PowerMode, power_mode, power_source, uses_ratio

# Smallest p for which lists are used: for smaller p, too many features contribute in most layers.
SMALLEST_P = 22.0
# While training in float16, terms below 2^-bits of the largest do not contribute: bits up to p = 64, and above. Above,
# fewer bits save little time, but 10 % of the gradients that count would become 0 (records/float16-steps.json).
HALF_BITS = (16.0, 20.0)
# Whether training in float16 shortens the lists for the backward pass.
SHORTEN = True
# Largest number of rows per call without a backward pass: the ranges of features are narrower over fewer rows.
MOST_ROWS = 1024
# Largest number of float4 (of rows) that a lane processes.
DISTANCE_VECTORS, GRAD_W_VECTORS, GRAD_X_VECTORS = 2, 4, 2
# Largest fraction of listed features if the alternative are the kernels in float16.
MOST_SHARE_OF_HALF = 0.34
# Whether both gradients are computed at the same time, on two streams.
OVERLAP = True
# Largest number of bytes of shared memory in which a block stores a number for each feature while it makes a list; four
# blocks of this size run on a multiprocessor of a GPU with little shared memory.
MOST_STORED = 24 * 1024
# Largest number of weights of a layer: the lists of larger layers would need gigabytes.
MOST_WEIGHTS = 1 << 28


def _group_definitions(vectors: int) -> tuple[tuple[str, int], ...]:
    return (("LANE_GROUP", LANE_GROUP), ("GROUP_ROWS", LANE_GROUP * vectors))


def _definitions(p: float, vectors: int) -> tuple[tuple[str, int], ...]:
    modes = ((mode.name, mode.value) for mode in PowerMode)
    return (*modes, ("POWER_MODE", power_mode(p).value), *_group_definitions(vectors))


@lru_cache(64)  # limited, because a schedule may use a different p in every step
def forward_kernel(p: float, vectors: int, *, mark: bool = False) -> Kernel:
    """Return the kernel that computes distances from the listed features; `mark`: and marks those that contribute."""
    source = power_source("power", None if uses_ratio(p) else p, signed=False)
    return Kernel("pruned_forward.cu", "listed_distance", (*_definitions(p, vectors), ("MARK", int(mark))), source)


@lru_cache(64)
def backward_kernel(p: float, vectors: int, function: str) -> Kernel:
    """Return a kernel that computes gradients from the listed features (or outputs)."""
    source = power_source("slope", None if uses_ratio(p) else p - 1, signed=True)
    return Kernel("pruned_backward.cu", function, _definitions(p, vectors), source)


@cache
def maximum_kernel(find_index: bool, vectors: int) -> Kernel:
    """Return the kernel for the maximum over the listed features, optionally with the feature that attains it."""
    definitions = (("FIND_INDEX", int(find_index)), *_group_definitions(vectors))
    return Kernel("pruned_maximum.cu", "listed_maximum", definitions)


@cache
def list_kernel(function: str) -> Kernel:
    """Return a kernel that runs before or after the kernels that read the lists; it is the same for all p."""
    return Kernel("pruned_lists.cu", function, (("SQUARE", SQUARE), *_group_definitions(1)))


def warps(function: str, count: int) -> Grid:
    """Return a grid with one warp for each of `count` items."""
    return line(count, list_kernel(function).threads // 32)


def applies(p: float) -> bool:
    """Whether p is large enough for lists."""
    return p >= SMALLEST_P


def supports(x: Tensor, w: Tensor, p: float) -> bool:
    """Whether lists can save time: p and the layer must be large enough."""
    if not applies(p):
        return False
    n, (out, features) = x.shape[0], w.shape
    return n >= 32 and out >= 32 and 256 <= features <= MOST_WEIGHTS // out


def kernels(p: float, n: int) -> tuple[Kernel, ...]:
    """Return the kernels of a training step with n rows at p."""
    vectors = row_groups(n)[1]
    if math.isinf(p):
        return (maximum_kernel(True, min(vectors, DISTANCE_VECTORS)),)
    grad_w = backward_kernel(p, min(vectors, GRAD_W_VECTORS), "listed_grad_w")
    grad_x = backward_kernel(p, min(vectors, GRAD_X_VECTORS), "listed_grad_x")
    return (forward_kernel(p, min(vectors, DISTANCE_VECTORS), mark=shortens(p)), grad_w, grad_x)


def cut(p: float, *, training: bool = False) -> float:
    """Return the ratio to the largest |d| below which a term does not contribute; at infinity, 1.

    >>> [round(cut(p), 3) for p in (24.0, 64.0, 512.0, math.inf)]
    [0.48, 0.771, 0.972, 1.0]
    """
    if math.isinf(p):
        return 1.0
    bits = HALF_BITS[two_passes(p)] if training and half.enabled() else 30 - math.log2(p)
    return 2.0 ** (-bits / p)


def two_passes(p: float) -> bool:
    """Whether distances are computed in two passes over the lists: the maximum of each pair, then its terms."""
    return not math.isinf(p) and power_mode(p) != PowerMode.SCALE_PER_OUTPUT


def shortens(p: float) -> bool:
    """Whether the forward pass of training shortens the lists: if it knows the maximum of a pair before its terms."""
    return SHORTEN and half.enabled() and two_passes(p)


def most_share(p: float, *, half: bool = False) -> float:
    """Return the fraction of listed features above which the dense kernels, or those in float16, are faster."""
    if half:
        return MOST_SHARE_OF_HALF
    return 0.15 if math.isinf(p) else 0.34 if power_mode(p) == PowerMode.SCALE_PER_OUTPUT else 0.5


class Lists:
    """The listed features of each output and the data they are computed from, in one int32 tensor.

    use_dense: [1]; head: what `Half` saves, or empty; first and second: numbers saved for each pair [out, padded], or
    None; x_transposed: [features, padded]; ranges: [features, 2]; scales: [out]; entries: [out, features, 2], feature
    and weight; counts: [out]; bits: [out, features / 32], whether each feature is listed; kept: the same for the
    backward pass, or None if its lists are the same.
    """

    def __init__(self, memory: Tensor, lengths: tuple[int, ...]) -> None:
        self.use_dense, self.head, *floats, self.entries, self.counts, self.bits, kept = aligned_parts(memory, lengths)
        self.kept = kept if kept.numel() else None
        first, second, *others = (part.view(torch.float32) for part in floats)
        self.first, self.second = (plane if plane.numel() else None for plane in (first, second))
        self.x_transposed, self.ranges, self.scales = others
        # Common arguments of the kernels that read the lists.
        self.listed = {"x_transposed": self.x_transposed, "entries": self.entries, "counts": self.counts}
        self.saved = {"scales": self.scales, "saved_first": self.first, "use_dense": self.use_dense}


def decide_dense(layer: Layer, total: Tensor, most: int, use_dense: Tensor) -> None:
    """Set `use_dense` to 1 if `total` exceeds `most`, otherwise to 0."""
    layer.launch(list_kernel("decide_dense"), (1, 1, 1), total=total, most=most, use_dense=use_dense)


class Pruned(Layer):
    """A layer computed from the listed features, or by the dense kernels if the lists are too long."""

    def __init__(self, launcher: Launcher, x: Tensor, w: Tensor, p: float) -> None:
        super().__init__(launcher, x, w, p)
        self.padded, self.vectors = row_groups(self.n)

    def _lengths(self, *, saving: bool) -> tuple[int, ...]:
        """Return the lengths of the parts of `Lists`; one number is saved per pair, or two if pairs have scales."""
        out, features, first = self.out, self.features, self.out * self.padded if saving else 0
        second = 0 if power_mode(self.p) == PowerMode.SCALE_PER_OUTPUT else first
        head = HEAD if self._half_dense() or pruned_half.supports(self.x, self.w, self.p) else 0
        bits = out * -(-features // 32)
        lists = (2 * out * features, out, bits, bits if saving and shortens(self.p) else 0)
        return (1, head, first, second, features * self.padded, 2 * features, out, *lists)

    def _half_dense(self) -> bool:
        """Whether the kernels in float16 that read all features replace the dense kernels."""
        return half.supports(self.launcher, self.x, self.w, self.p)

    def saved_like(self) -> Tensor:
        if math.isinf(self.p):
            return self.x.new_empty(self.n, self.out, dtype=torch.int32)
        return self.x.new_empty(sum(filled(self._lengths(saving=True))), dtype=torch.int32)

    def _grid(self, first: int, vectors: int) -> Grid:
        """Return a grid with one block per output (or feature) and group of rows."""
        return (first, self.padded // (LANE_GROUP * vectors), 1)

    def lists(self, saved: Tensor | None = None) -> Lists:
        """Compute the lists, in `saved` if given; set `use_dense` to 1 if they are too long."""
        x, features, padded = self.x, self.features, self.padded
        lengths = self._lengths(saving=saved is not None)
        lists = Lists(x.new_empty(sum(filled(lengths)), dtype=torch.int32) if saved is None else saved, lengths)
        total = torch.zeros(1, dtype=torch.int32, device=x.device)
        input_max = lists.head[:2].zero_() if lists.head.numel() else None
        common = {"features": features, "range": lists.ranges, "input_max": input_max}
        self.launch(
            list_kernel("transpose"), squares(padded, features),
            source=x, target=lists.x_transposed, rows=self.n, columns=features, padded=padded,
        )  # fmt: skip
        grid = warps("ranges", features)
        self.launch(list_kernel("ranges"), grid, **common, x_transposed=lists.x_transposed, padded=padded)
        stored = 4 * features <= MOST_STORED
        self.launch(
            list_kernel("output_lists"), (self.out, 1, 1), shared=4 * features if stored else 0,
            **common, w=self.w, scales=lists.scales, entries=lists.entries, counts=lists.counts, listed=lists.bits,
            kept=lists.kept, total=total, cut=cut(self.p, training=saved is not None), stored=stored,
            target_exponent=target_exponent(100, self.p),  # powers of the largest |d| stay below 2^100
        )  # fmt: skip
        most = most_share(self.p, half=saved is not None and self._half_dense())
        decide_dense(self, total, int(self.out * features * most), lists.use_dense)
        return lists

    def forward(self, saved: Tensor | None = None) -> Tensor:
        x, w, p, infinite = self.x, self.w, self.p, math.isinf(self.p)
        if saved is None and self.n > MOST_ROWS:
            return torch.cat([Pruned(self.launcher, rows, w, p).forward() for rows in x.split(MOST_ROWS)])
        lists, y = self.lists(None if infinite else saved), x.new_empty(self.n, self.out)
        results = [y, saved.view(torch.float32)] if infinite and saved is not None else [y]
        transposed = [x.new_empty(self.out, self.padded) for _ in results]
        common = {**lists.listed, "y": transposed[0], "features": self.features, "padded": self.padded}
        vectors = min(self.vectors, DISTANCE_VECTORS)
        grid = self._grid(self.out, vectors)
        if infinite:
            index = None if saved is None else transposed[1].view(torch.int32)
            kernel = maximum_kernel(saved is not None, vectors)
            self.launch(kernel, grid, **common, index=index, use_dense=lists.use_dense)
        else:
            self.launch(
                forward_kernel(p, vectors, mark=lists.kept is not None), grid,
                **common, **lists.saved, saved_second=lists.second, kept=lists.kept, p=p, cut=cut(p, training=True),
            )  # fmt: skip
            if lists.kept is not None:
                self.launch(
                    list_kernel("keep_marked"), warps("keep_marked", self.out),
                    kept=lists.kept, entries=lists.entries, counts=lists.counts, out=self.out, features=self.features,
                    use_dense=lists.use_dense,
                )  # fmt: skip
        for source, result in zip(transposed, results, strict=True):
            self._transpose_back(source, result, lists.use_dense)
        if infinite:
            return Infinity(self.launcher, x, w, p, lists.use_dense).forward(saved, y)
        residual = None if lists.first is None else lists.first[: y.numel()]
        if residual is not None and self._half_dense():
            return Half(self.launcher, x, w, p, lists.use_dense).distances(lists.head, residual, y, known=True)
        return Dense(self.launcher, x, w, p, lists.use_dense).forward(residual, y)

    def _transpose_back(
        self, source: Tensor, target: Tensor, use_dense: Tensor, nonfinite: Tensor | None = None
    ) -> None:
        rows, columns = target.shape
        self.launch(
            list_kernel("transpose_back"), squares(self.padded, columns),
            source=source, target=target, nonfinite=nonfinite, rows=rows, columns=columns, padded=self.padded,
            use_dense=use_dense,
        )  # fmt: skip

    def backward(self, grad: Tensor, y: Tensor, saved: Tensor, results: tuple[Tensor, Tensor]) -> None:
        if math.isinf(self.p):
            Infinity(self.launcher, self.x, self.w, self.p).backward(grad, y, saved, results)
            return
        lists = Lists(saved, self._lengths(saving=True))
        assert lists.first is not None
        maxima = None
        if lists.head.numel():
            maxima = Half(self.launcher, self.x, self.w, self.p).gradient_maxima(grad)
        output_max = self._gradients(grad, y, lists, maxima, results)
        residual = lists.first[: y.numel()]
        if self._half_dense():
            half_layer = Half(self.launcher, self.x, self.w, self.p, lists.use_dense)
            half_layer.gradients(grad, y, lists.head, residual, results, maxima)
            return
        Dense(self.launcher, self.x, self.w, self.p, lists.use_dense).backward(grad, y, residual, results, output_max)

    def _gradients(
        self, grad: Tensor, y: Tensor, lists: Lists, maxima: Tensor | None, results: tuple[Tensor, Tensor]
    ) -> Tensor | None:
        """Compute gradients from the lists, valid if use_dense is 0; return the largest y and |grad| if computed."""
        (grad_x, grad_w), listed_half, skip = results, None, lists.use_dense
        if maxima is not None and pruned_half.supports(self.x, self.w, self.p):
            listed_half = ListedGradients(
                self, grad, y, lists.x_transposed, lists.head[:2], maxima, lists.use_dense
            )  # fmt: skip
            skip, run = listed_half.skip_float, listed_half.run_float
        else:
            # Slopes from ratios are at most 1 and need no scale; in that case only the dense kernels use the maxima.
            run = lists.use_dense if uses_ratio(self.p) else None
        output_max = Dense(self.launcher, self.x, self.w, self.p, run).largest(y, grad)
        coefficients = self.x.new_empty(self.out * self.padded)
        nonfinite = torch.zeros(self.n + self.out, dtype=torch.int32, device=self.x.device)
        numbers = {"output_max": output_max, "padded": self.padded, "exponent": self.p - 1}
        common = {**lists.saved, **numbers, "coefficients": coefficients, "use_dense": skip}
        self.launch(
            list_kernel("transposed_coefficients"), squares(self.padded, self.out),
            **common, grad=grad, y=y, saved_second=lists.second, nonfinite=nonfinite, n=self.n, out=self.out,
        )  # fmt: skip
        # Both gradients read the same data; the lists by feature are computed beside grad_w.
        beside = self.launcher.beside(self.x.device) if OVERLAP else contextlib.nullcontext(lambda: None)
        with beside as join:
            if grad_w.numel():
                if listed_half:
                    listed_half.write_grad_w(lists.entries, lists.counts, grad_w)
                self.launch(
                    backward_kernel(self.p, min(self.vectors, GRAD_W_VECTORS), "listed_grad_w"), (self.out, 1, 1),
                    **common, **lists.listed, nonfinite=nonfinite[self.n :], grad_w=grad_w, features=self.features,
                )  # fmt: skip
        if grad_x.numel():
            entries, counts = self._feature_lists(lists)
            vectors, transposed = min(self.vectors, GRAD_X_VECTORS), self.x.new_empty(self.features, self.padded)
            if listed_half:
                listed_half.write_grad_x(entries, counts, transposed)
            self.launch(
                backward_kernel(self.p, vectors, "listed_grad_x"), self._grid(self.features, vectors),
                **common, x_transposed=lists.x_transposed, entries=entries, counts=counts,
                grad_x_transposed=transposed, out=self.out,
            )  # fmt: skip
            self._transpose_back(transposed, grad_x, lists.use_dense, nonfinite)
        join()
        return None if listed_half else output_max

    def _feature_lists(self, lists: Lists) -> tuple[Tensor, Tensor]:
        """Return the lists by feature: entries [features, out, 2] (output and weight) and counts [features]."""
        w, out, features, words = self.w, self.out, self.features, -(-self.out // 32)
        bits, entries, counts = (
            w.new_empty(size, dtype=torch.int32) for size in (words * features, out * features * 2, features)
        )
        common = {"bits": bits, "out": out, "features": features, "use_dense": lists.use_dense}
        grid = (-(-features // 256), words, 1)
        self.launch(
            list_kernel("transpose_bits"), grid, **common, listed=lists.bits if lists.kept is None else lists.kept
        )
        grid = warps("feature_lists", features)
        self.launch(list_kernel("feature_lists"), grid, **common, w=w, entries=entries, counts=counts)
        return entries, counts
