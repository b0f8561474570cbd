"""Make compressed nets of the connections that a GPU machine collected, and measure them on the test images.

    python -m tools.collected COLLECTION.tar [--which plain|first|second|all] [--at-least N] [--float16] [--out DIR]
    python -m tools.collected COLLECTION.tar --record records/NAME.json   # all selections of CURVE

A collection is a tar archive of the connections that were the largest, or often the second largest, of a neuron for
augmented and perturbed training images: `layerK.npz` with the arrays `count` (connections of each neuron), `cols`,
`weight`, and `plain`, `moved`, `second` (how often each was the largest on plain images, the largest on perturbed
images, and the second largest, as round(8 * log2(n + 1))); `rest.npz` (the other tensors of the net), `config.json`,
`meta.json`, and `test_logits.npz` (the logits of the dense net on the test images).
"""

import argparse
import io
import itertools
import json
import math
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.certificates import certify
from linfnet.certificates.real import real_certified
from linfnet.data import load
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.files import read_table, write_json, write_table
from linfnet.nn import SparseDistance, SparseNet
from linfnet.nn.sparse import remove_unread
from linfnet.train.run_folder import environment

Arrays = dict[str, np.ndarray]
KINDS: dict[str, Callable[[Arrays, int], np.ndarray]] = {
    "plain": lambda layer, least: layer["plain"] >= least,
    "first": lambda layer, least: np.maximum(layer["plain"], layer["moved"]) >= least,
    "second": lambda layer, least: (np.maximum(layer["plain"], layer["moved"]) > 0) | (layer["second"] >= least),
    "all": lambda layer, least: np.ones(len(layer["cols"]), bool),
}


# Which connections remain, how often they must have been the largest (or second largest), and the dtype of the weights.
CURVE = (
    *(("plain", least, torch.float32) for least in (1, 2)),
    *(("first", least, torch.float32) for least in (1, 2, 4, 8, 32)),
    *(("first", least, torch.float16) for least in (1, 4)),
    *(("second", least, torch.float32) for least in (3, 32)),
)


@dataclass(frozen=True)
class Collection:
    """The contents of a collection."""

    config: dict[str, Any]
    eps: Fraction
    layers: list[Arrays]
    rest: dict[str, Tensor]
    logits: Tensor
    """Of the dense net on the test images."""


def read_member(path: Path, name: str) -> bytes:
    """Return the contents of a file in a collection."""
    with tarfile.open(path) as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def read_collection(path: Path) -> Collection:
    """Read a collection."""

    def arrays(name: str) -> Arrays:
        return dict(np.load(io.BytesIO(read_member(path, name))))

    with tarfile.open(path) as archive:
        count = sum(name.startswith("layer") for name in archive.getnames())
    return Collection(
        json.loads(read_member(path, "config.json")),
        parse_epsilon(json.loads(read_member(path, "meta.json"))["eps"]),
        [arrays(f"layer{number}.npz") for number in range(count)],
        {name: torch.from_numpy(array) for name, array in arrays("rest.npz").items()},
        torch.from_numpy(arrays("test_logits.npz")["logits"]),
    )


def _widths(config: dict[str, Any]) -> list[int]:
    return [math.prod(config["image_shape"]), *config["hidden"], config["classes"]]


def sparse_net(collection: Collection, which: str = "first", at_least: int = 1) -> SparseNet:
    """Return the net that has the connections of one kind, without neurons whose output is not used.

    Args:
        collection: the connections.
        which: "plain" (the largest on an image that was not perturbed), "first" (the largest on any image), "second"
            (also those that were the second largest), or "all".
        at_least: how often a connection must have been the largest (for "second": the second largest). A connection
            that was the most frequent one of its neuron always remains.
    """
    config, rest = collection.config, collection.rest
    least = round(8 * math.log2(at_least + 1))
    layers: list[SparseDistance] = []
    for number, (layer, inputs) in enumerate(zip(collection.layers, _widths(config)[:-1], strict=True)):
        neurons = np.repeat(np.arange(len(layer["count"])), layer["count"])
        times = np.maximum(layer["plain"], layer["moved"]).astype(np.int64)
        order = np.lexsort((-times, neurons))
        keep = KINDS[which](layer, least)
        keep[order[np.cumsum(layer["count"]) - layer["count"]]] = True  # the most frequent one of each neuron
        kept = np.bincount(neurons[keep], minlength=len(layer["count"]))
        layers.append(
            SparseDistance(
                torch.from_numpy(layer["weight"][keep]),
                torch.from_numpy(layer["cols"][keep].astype(np.int64)),
                torch.from_numpy(np.concatenate([[0], np.cumsum(kept)])),
                inputs,
                mean=rest.get(f"layers.{number}.shift.running_mean"),
                bias=rest.get(f"layers.{number}.bias"),
            )
        )
    options = {key: config[key] for key in ("mean", "std", "negate_logits")}
    net = SparseNet(config["image_shape"], config["classes"], remove_unread(layers), **options).eval()
    net.scale.data.copy_(rest["scale"])
    return net


@torch.no_grad()
def measure(net: SparseNet, collection: Collection, data: str, limit: int | None = None) -> dict[str, Any]:
    """Return clean and certified accuracy on the test images, and the share of images with the dense net's logits."""
    test = load(data, "test").first(limit)
    dense, logits, certified = collection.logits[: len(test)], list[Tensor](), list[Tensor]()
    for start in range(0, len(test), 500):
        pixels, labels = test.pixels(slice(start, start + 500)), test.labels[start : start + 500]
        logits.append(net(pixels))
        certificate = certify(net, pixels, labels)
        certified.append(torch.stack([certificate.radius >= 0, certificate.at(collection.eps)], 1))
    found, (clean, robust) = torch.cat(logits), torch.cat(certified).double().mean(0).tolist()
    layers = net.sparse_layers()
    return {
        "connections": [layer.connections for layer in layers],
        "total": sum(layer.connections for layer in layers),
        "hidden": list(net.hidden),
        "bytes": net.saved_size(),
        "identical": (found == dense).all(1).double().mean().item(),
        "clean": clean,
        "certified": robust,
        "dense_certified": real_certified(dense, test.labels, 1 / net.std, collection.eps).double().mean().item(),
        "dense_clean": (dense.argmax(1) == test.labels).double().mean().item(),
    }


def write_record(record: Path, path: Path, collection: Collection, data: str) -> None:
    """Measure all selections of CURVE, and write them into a record; the rows of other collections remain."""
    rows: list[dict[str, Any]] = []
    for which, least, dtype in CURVE:
        net = sparse_net(collection, which, least).round_weights_(dtype)
        chosen = {"which": which, "at_least": least, "dtype": str(dtype).removeprefix("torch.")}
        rows.append({**chosen, **measure(net, collection, data)})
    table: dict[str, Any] = read_table(record) if record.exists() else {}
    dense = sum(a * b for a, b in itertools.pairwise(_widths(collection.config)))
    command = {"command": f"python -m tools.collected {path.name} --record records/{record.name}"}
    about = {"eps": format_epsilon(collection.eps), "dense_connections": dense, "environment": environment() | command}
    write_json(record, {**table, path.stem: {**about, "rows": rows}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--which", choices=KINDS, default="first")
    parser.add_argument("--at-least", type=int, default=1)
    parser.add_argument("--float16", action="store_true", help="round the weights to float16")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--limit", type=int, help="measure on the first test images only")
    parser.add_argument("--record", type=Path, help="measure all selections and add them to this file")
    parser.add_argument("--out", type=Path, help="save the net in this folder")
    given = parser.parse_args()
    collection = read_collection(given.collection)
    if given.record is not None:
        write_record(given.record, given.collection, collection, given.data)
        return
    net = sparse_net(collection, given.which, given.at_least)
    if given.float16:
        net.round_weights_(torch.float16)
    if given.out is not None:
        net.save(given.out, class_names=collection.config["class_names"])
        about = {"data": given.data, "eps": [format_epsilon(collection.eps)]}
        write_table(given.out / "config.json", {**read_table(given.out / "config.json"), **about})
    sys.stdout.write(json.dumps(measure(net, collection, given.data, given.limit)) + "\n")


if __name__ == "__main__":
    main()
