"""ONNX files of nets at p = infinity, and VNN-LIB properties for verifiers that read both.

An ONNX file has the same operations in the same order as the net, hence the same bits. The simplest form of a layer is
one subtraction of shape [batch, out, in], gigabytes for the published nets. Instead a Scan runs over chunks of outputs:
each iteration subtracts a few rows of weights and takes the largest absolute value.
"""

import os
import tempfile
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from linfnet.boxes import check_images
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.files import replacing
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.distance import DistanceModule

OPSET = 18
# Rows of weights in one iteration of a Scan: few enough for the cache, enough to hide the overhead.
CHUNK = 32
# Larger weights are written to a separate file, which runtimes map into memory instead of parsing it.
INLINE_BYTES = 64 << 20
# Digits of VNN-LIB's bounds: more than a float64 has, so that parsing them loses less than a verifier's rounding.
DIGITS = 20


def chunk_size(outputs: int) -> int:
    """The largest divisor of a layer's width that is at most CHUNK: chunks are equal and need no padding.

    >>> chunk_size(5120), chunk_size(10), chunk_size(37)
    (32, 10, 1)
    """
    return next(size for size in range(min(outputs, CHUNK), 0, -1) if outputs % size == 0)


class _Graph:
    """Nodes and constants of a graph under construction."""

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
        """The declaration of an input or output."""
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, shape)

    def distances(self, x: str, weight: Tensor, name: str) -> str:
        """x [batch, in] and weight [out, in] -> [batch, out]."""
        node = self.onnx.helper.make_node
        outputs, inputs = weight.shape
        size = chunk_size(outputs)
        rows = self.constant(weight.reshape(outputs // size, size, inputs), f"{name}.weight")
        shape = self.constant(np.array([-1, outputs], np.int64), f"{name}.shape")
        state, row, largest, after = (f"{name}.{part}" for part in ("state", "rows", "largest", "state_out"))
        # For the body, x is a state that never changes: [batch, 1, in]; each iteration returns [batch, size].
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


def build_onnx(classifier: Classifier) -> Any:
    """The net at p = infinity in eval mode as an ONNX model: `images` [batch, C, H, W] -> `logits` [batch, classes]."""
    if classifier.system != LinfNet.system:
        raise LinfnetError(f"ONNX export is for l_inf-distance nets; the net is of system {classifier.system!r}")
    net = cast(LinfNet, classifier)
    if next(net.parameters()).dtype != torch.float32:
        raise LinfnetError("ONNX export is for float32 nets")
    graph = _Graph(require("onnx", "onnx"))
    helper = graph.onnx.helper
    graph.constant(np.array([1], np.int64), "axis_1")
    graph.constant(np.array([-1], np.int64), "last_axis")
    x = graph.add("Sub", ["images", graph.constant(net.normalize.mean.view(1, -1, 1, 1), "mean")], "centred")
    x = graph.add("Div", [x, graph.constant(net.normalize.std.view(1), "std")], "normalized")
    x = graph.add("Flatten", [x], "pixels", axis=1)
    for index, layer in enumerate(net.layers):
        assert isinstance(layer, DistanceModule)
        name = f"layers.{index}"
        x = graph.distances(x, layer.weight, name)
        if layer.shift is not None:
            x = graph.add("Sub", [x, graph.constant(layer.shift.running_mean, f"{name}.mean")], f"{name}.shifted")
        if layer.bias is not None:
            x = graph.add("Add", [x, graph.constant(layer.bias, f"{name}.bias")], f"{name}.biased")
    graph.add("Neg" if net.negate_logits else "Identity", [x], "logits")
    images, logits = graph.floats("images", ["batch", *net.image_shape]), graph.floats("logits", ["batch", net.classes])
    whole = helper.make_graph(graph.nodes, "linfnet", [images], [logits], graph.constants)
    model = helper.make_model(whole, producer_name="linfnet", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    return model


def write_onnx(net: Classifier, path: Path) -> list[Path]:
    """Write the net at p = infinity; large weights go to `PATH.data`. Returns the files written."""
    model = build_onnx(net)
    onnx = require("onnx", "onnx")
    if sum(parameter.numel() * 4 for parameter in net.parameters()) <= INLINE_BYTES:
        with replacing(path) as temporary:
            onnx.save_model(model, os.fspath(temporary))
        return [path]
    data = path.with_name(path.name + ".data")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder) / path.name
        onnx.save_model(model, os.fspath(written), save_as_external_data=True, location=data.name)
        written.with_name(data.name).chmod(written.stat().st_mode & 0o777)
        written.with_name(data.name).replace(data)
        written.replace(path)
    return [path, data]


def onnx_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """A function that runs an ONNX file on images with onnxruntime on the CPU."""
    onnxruntime: Any = require("onnxruntime", "onnx")
    session: Any = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.cpu().numpy()})[0])


@torch.no_grad()
def verify_onnx(net: Classifier, path: Path, images: Tensor) -> None:
    """Raise unless the file gives the net's logits bit for bit, on all images [N, C, H, W] and on the first one."""
    run = onnx_runner(path)
    with net.at_infinity():
        for part in (images, images[:1]):
            expected, got = net(part).cpu(), run(part)
            if not torch.equal(expected, got):
                difference = (expected - got).abs().max().item()
                raise LinfnetError(f"{path} differs from the net by up to {difference:g} in a logit: do not use it")


def vnnlib_property(image: Tensor, label: int, classes: int, epsilon: Fraction) -> str:
    """A property that exactly the counterexamples satisfy: images in the box (rounded outwards, in [0, 1]) for which
    another logit is at least the label's. A tie is a counterexample, as it is not certified.

    Args:
        image: [C, H, W] in [0, 1].
        label: the correct class.
        classes: number of logits.
        epsilon: exact, in pixel units.
    """
    if not 0 <= label < classes:
        raise ArgumentError(f"label is {label}; wanted one of {classes} classes")
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
    """A decimal not above, or not below, a rational.

    >>> decimal_bound(Fraction(1, 3), up=False), decimal_bound(Fraction(1, 3), up=True)
    ('0.33333333333333333333', '0.33333333333333333334')
    """
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return format(context.divide(Decimal(value.numerator), Decimal(value.denominator)), "f")
