"""ONNX files of nets at p = infinity: the same operations in the same order, hence the same bits.

A layer would naturally be one subtraction of shape [batch, out, in], gigabytes for the published nets. Instead a Scan
runs over chunks of outputs: each turn subtracts a few rows of weights, takes absolute values and the maximum.
"""

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.files import replacing
from linfnet.nn import LinfNet
from linfnet.nn.distance import DistanceModule

OPSET = 18
# Rows of weights in one turn of a Scan: few enough for the cache, enough to hide the cost of a turn.
CHUNK = 32
# Weights beyond this go into a file of their own, which runtimes map into memory instead of parsing it.
INLINE_BYTES = 64 << 20


def _import_onnx() -> Any:
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise LinfnetError("writing ONNX needs onnx: pip install 'linfnet[onnx]'") from None


def chunk_size(outputs: int) -> int:
    """The largest divisor of a layer's width that is at most CHUNK: no row is left over, none is padded.

    >>> chunk_size(5120), chunk_size(10), chunk_size(37)
    (32, 10, 1)
    """
    return next(size for size in range(min(outputs, CHUNK), 0, -1) if outputs % size == 0)


class _Graph:
    """Collects nodes and constants; names are given in order."""

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

    def distances(self, x: str, weight: Tensor, name: str) -> str:
        """x [batch, in] and weight [out, in] -> [batch, out]."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        outputs, inputs = weight.shape
        size = chunk_size(outputs)
        rows = self.constant(weight.reshape(outputs // size, size, inputs), f"{name}.weight")
        batch = f"{name}.batch"
        # The body sees x as a state that never changes: [batch, 1, in]; it gives [batch, size] at every turn.
        body = helper.make_graph(
            [
                helper.make_node("Sub", [f"{name}.state", f"{name}.rows"], [f"{name}.difference"]),
                helper.make_node("Abs", [f"{name}.difference"], [f"{name}.size"]),
                helper.make_node("ReduceMax", [f"{name}.size", "last_axis"], [f"{name}.largest"], keepdims=0),
                helper.make_node("Identity", [f"{name}.state"], [f"{name}.state_out"]),
            ],
            f"{name}.turn",
            [
                helper.make_tensor_value_info(f"{name}.state", kind, [batch, 1, inputs]),
                helper.make_tensor_value_info(f"{name}.rows", kind, [size, inputs]),
            ],
            [
                helper.make_tensor_value_info(f"{name}.state_out", kind, [batch, 1, inputs]),
                helper.make_tensor_value_info(f"{name}.largest", kind, [batch, size]),
            ],
        )
        state = self.add("Unsqueeze", [x, "axis_1"], f"{name}.x")
        self.nodes.append(
            helper.make_node(
                "Scan", [state, rows], [f"{name}.same", f"{name}.chunks"], f"{name}.scan", body=body, num_scan_inputs=1
            )
        )
        aside = self.add("Transpose", [f"{name}.chunks"], f"{name}.aside", perm=[1, 0, 2])
        return self.add("Reshape", [aside, f"{name}.shape"], f"{name}.distance")


def build_onnx(net: LinfNet) -> Any:
    """The net at p = infinity in eval mode as an ONNX model: `images` [batch, C, H, W] -> `logits` [batch, classes]."""
    onnx = _import_onnx()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    if next(net.parameters()).dtype != torch.float32:
        raise LinfnetError("ONNX export is for float32 nets")
    graph = _Graph(onnx)
    graph.constant(np.array([1], np.int64), "axis_1")
    graph.constant(np.array([-1], np.int64), "last_axis")
    x = graph.add("Sub", ["images", graph.constant(net.normalize.mean.view(1, -1, 1, 1), "mean")], "centred")
    x = graph.add("Div", [x, graph.constant(net.normalize.std.view(1), "std")], "normalized")
    x = graph.add("Flatten", [x], "pixels", axis=1)
    for index, layer in enumerate(net.layers):
        assert isinstance(layer, DistanceModule)
        name = f"layers.{index}"
        graph.constant(np.array([-1, layer.weight.shape[0]], np.int64), f"{name}.shape")
        x = graph.distances(x, layer.weight, name)
        if layer.shift is not None:
            x = graph.add("Sub", [x, graph.constant(layer.shift.running_mean, f"{name}.mean")], f"{name}.shifted")
        if layer.bias is not None:
            x = graph.add("Add", [x, graph.constant(layer.bias, f"{name}.bias")], f"{name}.biased")
    graph.add("Neg" if net.negate_logits else "Identity", [x], "logits")
    images = helper.make_tensor_value_info("images", kind, ["batch", *net.image_shape])
    logits = helper.make_tensor_value_info("logits", kind, ["batch", net.classes])
    whole = helper.make_graph(graph.nodes, "linfnet", [images], [logits], graph.constants)
    model = helper.make_model(whole, producer_name="linfnet", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 9
    return model


def write_onnx(net: LinfNet, path: Path) -> list[Path]:
    """Write the net at p = infinity; large weights go to `PATH.data`. Returns the files written."""
    onnx = _import_onnx()
    model = build_onnx(net)
    if sum(parameter.numel() * 4 for parameter in net.parameters()) <= INLINE_BYTES:
        with replacing(path) as temporary:
            onnx.save_model(model, os.fspath(temporary))
        return [path]
    data = path.with_name(path.name + ".data")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written = Path(folder) / path.name
        onnx.save_model(
            model, os.fspath(written), save_as_external_data=True, all_tensors_to_one_file=True, location=data.name
        )
        written.with_name(data.name).chmod(written.stat().st_mode & 0o777)
        written.with_name(data.name).replace(data)
        written.replace(path)
    return [path, data]


def onnx_runner(path: Path) -> Callable[[Tensor], Tensor]:
    """A function that runs an ONNX file on images with onnxruntime on the CPU."""
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        raise LinfnetError("checking the ONNX file needs onnxruntime: pip install 'linfnet[onnx]'") from None
    session: Any = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.cpu().numpy()})[0])


@torch.no_grad()
def verify_onnx(net: LinfNet, path: Path, images: Tensor) -> None:
    """Raise an error unless the file gives the net's logits, bit for bit, on images [N, C, H, W] and on one alone."""
    run = onnx_runner(path)
    with net.at_infinity():
        for part in (images, images[:1]):
            expected, got = net(part).cpu(), run(part)
            if not torch.equal(expected, got):
                off = (expected - got).abs().max().item()
                raise LinfnetError(f"{path} gives other logits than the net, by up to {off:g}: do not use it")
