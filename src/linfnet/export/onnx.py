"""ONNX files of nets at p = inf, and VNN-LIB properties for verifiers that read both formats.

An ONNX file has the same operations in the same order as the net, so its results are equal bit for bit. The simplest
form of a layer, one subtraction of shape [batch, out, in], needs gigabytes for the published nets. Instead, each
iteration of a Scan subtracts a few rows of weights and computes the largest absolute values. The layers of a compressed
net gather the inputs of all connections, [batch, connections] numbers, and convolutions gather their patches.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from linfnet.boxes import check_images
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.files import replacing, temporary_folder
from linfnet.nn import Classifier, ConvStemNet, LinfNet, LpDistanceConv2d, SparseDistance, SparseNet
from linfnet.nn.distance import DistanceModule
from linfnet.version import __version__

OPSET = 18
# Largest number of rows of weights in an iteration of a Scan: they fit into the cache, and the overhead is small.
CHUNK = 32
# Neurons of a sparse layer are padded to at most about this multiple of their connections.
GROWTH = 2
# Largest size of weights inside the ONNX file. Runtimes can map a separate file into memory instead of parsing it.
INLINE_BYTES = 64 << 20
# Digits of the bounds in a VNN-LIB property: more than float64 has, so that bounds lose almost nothing by rounding.
DIGITS = 20


def chunk_size(outputs: int) -> int:
    """Return the largest divisor of a layer's width that is at most CHUNK, so that chunks need no padding.

    >>> chunk_size(5120), chunk_size(10), chunk_size(37)
    (32, 10, 1)
    """
    return next(size for size in range(min(outputs, CHUNK), 0, -1) if outputs % size == 0)


class _Graph:
    """The nodes and constants of a graph while it is built."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Tensor | np.ndarray, name: str) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def floats(self, name: str, shape: list[str | int]) -> Any:
        """Return the declaration of an input or output."""
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, shape)

    def distances(self, x: str, weight: Tensor, name: str) -> str:
        """Add nodes for the distances [batch, out] of x [batch, in] to weight [out, in]; return the output's name."""
        node = self.onnx.helper.make_node
        outputs, inputs = weight.shape
        size = chunk_size(outputs)
        rows = self.constant(weight.reshape(outputs // size, size, inputs), f"{name}.weight")
        shape = self.constant(np.array([-1, outputs], np.int64), f"{name}.shape")
        state, row, largest, after = (f"{name}.{part}" for part in ("state", "rows", "largest", "state_out"))
        # In the body, x is a state [batch, 1, in] that does not change; each iteration returns [batch, size].
        body = self.onnx.helper.make_graph(
            [
                node("Sub", [state, row], [f"{name}.difference"]),
                node("Abs", [f"{name}.difference"], [f"{name}.size"]),
                node("ReduceMax", [f"{name}.size", "last_axis"], [largest], keepdims=0),
                node("Identity", [state], [after]),
            ],
            f"{name}.body",
            [self.floats(state, [f"{name}.batch", 1, inputs]), self.floats(row, [size, inputs])],
            [self.floats(after, [f"{name}.batch", 1, inputs]), self.floats(largest, [f"{name}.batch", size])],
        )
        start = self.add("Unsqueeze", [x, "axis_1"], f"{name}.x")
        ends = [f"{name}.same", f"{name}.chunks"]
        self.nodes.append(node("Scan", [start, rows], ends, f"{name}.scan", body=body, num_scan_inputs=1))
        transposed = self.add("Transpose", [ends[1]], f"{name}.transposed", perm=[1, 0, 2])
        return self.add("Reshape", [transposed, shape], f"{name}.distance")

    def sparse_distances(self, x: str, layer: SparseDistance, name: str) -> str:
        """Add nodes for the distances [batch, out] of a sparse layer; return the output's name.

        Neurons with a similar number of connections are computed together. Shorter rows are padded by their last
        connection, which does not change the maximum.
        """
        counts, starts = layer.offsets.long().diff().cpu(), layer.offsets.long()[:-1].cpu()
        index, weight = layer.index.cpu(), layer.weight.detach().cpu()
        groups: list[Tensor] = []
        parts: list[str] = []
        for width in _widths(counts):
            neurons = ((counts <= width) & (counts > (width - 1) // GROWTH)).nonzero().flatten()
            steps = torch.minimum(torch.arange(width), counts[neurons, None] - 1)
            rows, part = starts[neurons, None] + steps, f"{name}.{len(groups)}"
            gathered = self.add("Gather", [x, self.constant(index[rows], f"{part}.index")], f"{part}.x", axis=1)
            difference = self.add(
                "Sub", [gathered, self.constant(weight[rows], f"{part}.weight")], f"{part}.difference"
            )
            size = self.add("Abs", [difference], f"{part}.size")
            parts.append(self.add("ReduceMax", [size, "last_axis"], f"{part}.largest", keepdims=0))
            groups.append(neurons)
        joined = parts[0] if len(parts) == 1 else self.add("Concat", parts, f"{name}.joined", axis=1)
        order = torch.cat(groups).argsort().int()
        return self.add("Gather", [joined, self.constant(order, f"{name}.order")], f"{name}.distance", axis=1)

    def convolution(
        self, x: str, shape: Sequence[int], layer: LpDistanceConv2d, name: str
    ) -> tuple[str, tuple[int, int, int]]:
        """Add nodes for a convolutional layer on x [batch, C * H * W]; return the output's name, and its (C, H, W).

        Patches are gathered from x, to which a zero is added for the padding.
        """
        size, out = math.prod(shape), layer.out_channels
        numbers = torch.arange(1.0, size + 1, dtype=torch.float64).view(1, *shape)
        columns = F.unfold(numbers, layer.kernel_size, padding=layer.padding, stride=layer.stride)[0].long() - 1
        index = self.constant(torch.where(columns < 0, size, columns).t(), f"{name}.index")
        weight = self.constant(layer.weight.unsqueeze(1), f"{name}.weight")
        ends = self.constant(np.array([0, 0, 0, 1], np.int64), f"{name}.ends")
        padded = self.add("Pad", [x, ends], f"{name}.padded")
        patches = self.add("Gather", [padded, index], f"{name}.patches", axis=1)
        axis = self.constant(np.array([1], np.int64), f"{name}.axis")
        difference = self.add(
            "Sub", [self.add("Unsqueeze", [patches, axis], f"{name}.x"), weight], f"{name}.difference"
        )
        sizes = self.add("Abs", [difference], f"{name}.size")
        y = self.add("ReduceMax", [sizes, "last_axis"], f"{name}.distance", keepdims=0)
        if layer.shift is not None:
            mean = self.constant(layer.shift.running_mean.unsqueeze(1), f"{name}.mean")
            y = self.add("Sub", [y, mean], f"{name}.shifted")
        rows, width = ((side + 2 * layer.padding - layer.kernel_size) // layer.stride + 1 for side in shape[1:])
        flat = self.constant(np.array([-1, out * rows * width], np.int64), f"{name}.flat")
        return self.add("Reshape", [y, flat], f"{name}.flattened"), (out, rows, width)


def _widths(counts: Tensor) -> list[int]:
    """Return ascending numbers of connections, so that each neuron has at least half of the next one."""
    widths, largest = list[int](), int(counts.max())
    while largest > 0:
        widths.append(largest)
        below = counts[counts <= (largest - 1) // GROWTH]
        largest = int(below.max()) if len(below) else 0
    return widths[::-1]


def build_onnx(classifier: Classifier, class_names: Sequence[str] = ()) -> Any:
    """Return an ONNX model of the net at p = inf in eval mode, from `images` [batch, C, H, W] to `logits`.

    The metadata properties of the model are the values of `onnx_metadata`.
    """
    if classifier.system not in (LinfNet.system, ConvStemNet.system, SparseNet.system):
        raise LinfnetError(
            "ONNX export is for nets of systems 'linf', 'conv-stem' and 'sparse'; this one is of system "
            f"{classifier.system!r}"
        )
    net = cast(LinfNet | ConvStemNet | SparseNet, classifier)
    if next(net.parameters()).dtype != torch.float32:
        raise LinfnetError("ONNX export is for float32 nets")
    graph = _Graph(require("onnx", "onnx"))
    helper = graph.onnx.helper
    if not isinstance(net, SparseNet):  # onnxruntime warns about constants that no node uses
        graph.constant(np.array([1], np.int64), "axis_1")
    graph.constant(np.array([-1], np.int64), "last_axis")
    mean = net.normalize.mean.view(1, -1, *[1] * (len(net.image_shape) - 1))
    x = graph.add("Sub", ["images", graph.constant(mean, "mean")], "centred")
    x = graph.add("Div", [x, graph.constant(net.normalize.std.view(1), "std")], "normalized")
    x, shape = graph.add("Flatten", [x], "pixels", axis=1), net.image_shape
    for index, convolution in enumerate(() if isinstance(net, LinfNet) else net.stem or ()):
        assert isinstance(convolution, LpDistanceConv2d)
        x, shape = graph.convolution(x, shape, convolution, f"stem.{index}")
    for index, layer in enumerate(net.layers):
        assert isinstance(layer, DistanceModule)
        name = f"layers.{index}"
        sparse = isinstance(layer, SparseDistance)
        x = graph.sparse_distances(x, layer, name) if sparse else graph.distances(x, layer.weight, name)
        if layer.shift is not None:
            x = graph.add("Sub", [x, graph.constant(layer.shift.running_mean, f"{name}.mean")], f"{name}.shifted")
        if layer.bias is not None:
            x = graph.add("Add", [x, graph.constant(layer.bias, f"{name}.bias")], f"{name}.biased")
    graph.add("Neg" if net.negate_logits else "Identity", [x], "logits")
    images, logits = graph.floats("images", ["batch", *net.image_shape]), graph.floats("logits", ["batch", net.classes])
    whole = helper.make_graph(graph.nodes, "linfnet", [images], [logits], graph.constants)
    model = helper.make_model(whole, producer_name="linfnet", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    helper.set_model_props(model, onnx_metadata(net, class_names))
    return model


def onnx_metadata(net: Classifier, class_names: Sequence[str] = ()) -> dict[str, str]:
    """Return what a reader of an ONNX file cannot see in the graph; values other than texts are JSON.

    With the Lipschitz constant K, half the gap between the two largest logits divided by K is a certified radius in
    real arithmetic.
    """
    numbers: dict[str, Any] = {
        "image_shape": list(net.image_shape),
        "pixel_range": [0, 1],
        "mean": list(net.mean),
        "std": net.std,
        "lipschitz_linf": net.lipschitz,
        "class_names": list(class_names) or [str(index) for index in range(net.classes)],
    }
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in numbers.items()}
    return {"linfnet": __version__, "system": net.system, **values}


def write_onnx(net: Classifier, path: Path, class_names: Sequence[str] = ()) -> list[Path]:
    """Write the net at p = inf as ONNX, with large weights in a separate file `PATH.data`; return the written files."""
    model = build_onnx(net, class_names)
    onnx = require("onnx", "onnx")
    if sum(parameter.numel() * 4 for parameter in net.parameters()) <= INLINE_BYTES:
        with replacing(path) as temporary:
            onnx.save_model(model, os.fspath(temporary))
        return [path]
    data = path.with_name(path.name + ".data")
    with temporary_folder(path) as folder:
        written = folder / path.name
        onnx.save_model(model, os.fspath(written), save_as_external_data=True, location=data.name)
        written.with_name(data.name).chmod(written.stat().st_mode & 0o777)
        path.unlink(missing_ok=True)  # an old graph must not be used with the new weights
        for file in (data, path):
            with replacing(file) as temporary:
                (folder / file.name).replace(temporary)
    return [path, data]


def onnx_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the logits of images by an ONNX file, with onnxruntime on the CPU."""
    onnxruntime: Any = require("onnxruntime", "onnx")
    session: Any = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        # onnxruntime reports an error for the maximum of an empty batch.
        some = images if len(images) else images.new_zeros(1, *images.shape[1:])
        return torch.from_numpy(session.run(["logits"], {"images": some.cpu().numpy()})[0])[: len(images)]

    return run


@torch.no_grad()
def verify_onnx(net: Classifier, path: Path, images: Tensor) -> None:
    """Raise an error unless an ONNX file and the net give the same bits for all images and for a single one."""
    run = onnx_runner(path)
    with net.at_infinity():
        for part in (images, images[:1]):
            expected, got = net(part).cpu(), run(part)
            if not torch.equal(expected, got):
                difference = (expected - got).abs().max().item()
                raise LinfnetError(f"{path} differs from the net by up to {difference:g} in a logit: do not use it")


def vnnlib_property(image: Tensor, label: int, classes: int, epsilon: Fraction) -> str:
    """Return a property that is satisfied exactly by the counterexamples.

    A counterexample is an image in the box (rounded outwards and clipped to [0, 1]) for which another logit is at least
    as large as the logit of the label. A tie is a counterexample because it is not certified.

    Args:
        image: [C, H, W] in [0, 1].
        label: the correct class.
        classes: number of logits.
        epsilon: exact, in pixel units.
    """
    if not 0 <= label < classes:
        raise ArgumentError(f"label is {label}; expected one of {classes} classes")
    pixels = check_images(image).double().flatten().tolist()
    lines = [f"; class {label} within eps = {format_epsilon(epsilon)} of an image of shape {tuple(image.shape)}"]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(pixels))]
    lines += [f"(declare-const Y_{j} Real)" for j in range(classes)]
    for i, pixel in enumerate(map(Fraction, pixels)):
        lines.append(f"(assert (>= X_{i} {decimal_bound(max(pixel - epsilon, Fraction(0)), up=False)}))")
        lines.append(f"(assert (<= X_{i} {decimal_bound(min(pixel + epsilon, Fraction(1)), up=True)}))")
    others = (f"(and (>= Y_{j} Y_{label}))" for j in range(classes) if j != label)
    return "\n".join([*lines, f"(assert (or {' '.join(others)}))", ""])


def decimal_bound(value: Fraction, up: bool) -> str:
    """Return a decimal number that is not below (`up`) or not above a fraction.

    >>> decimal_bound(Fraction(1, 3), up=False), decimal_bound(Fraction(1, 3), up=True)
    ('0.33333333333333333333', '0.33333333333333333334')
    """
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return format(context.divide(Decimal(value.numerator), Decimal(value.denominator)), "f")
