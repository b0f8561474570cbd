"""Compare a compressed net with nets that keep the weights of largest magnitude, and write the record.

python -m tools.magnitude records/compression-magnitude.json
"""

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from linfnet.compression import Compressed, compare, compress, sparse_net_of
from linfnet.data import load
from linfnet.files import write_json
from linfnet.nn import LinfNet, LpDistance
from linfnet.systems import load_model
from linfnet.train.run_folder import environment

MODEL, DATA, EPS = "mnist-small", "mnist", Fraction(1, 10)
TRAINING, TEST = 4000, 2000
SHARES = (0.1, 0.3, 0.5)


def largest(layer: LpDistance, count: int) -> Tensor:
    """Return bool [out, in]: the weights of largest magnitude, at least one of each neuron."""
    sizes = layer.weight.detach().abs()
    keep = torch.zeros(sizes.numel(), dtype=torch.bool)
    keep[sizes.flatten().topk(count).indices] = True
    return keep.view(sizes.shape).scatter(1, sizes.argmax(1, keepdim=True), True)


def row(kind: str, found: Compressed) -> dict[str, Any]:
    """Return the figures of one compressed net."""
    after = found.after
    shares = {"clean": after.clean, "certified": after.certified, "identical": found.identical}
    return {"kind": kind, "connections": sum(after.connections), **shares}


def main() -> None:
    net, test = cast(LinfNet, load_model(MODEL)), load(DATA, "test").first(TEST)
    found = compress(net, load(DATA, "train"), eps=EPS, images=TRAINING, passes=1, check=test)
    rows = [row("deciding", found)]
    layers = [cast(LpDistance, layer) for layer in net.layers]
    choices = [found.after.connections, *([int(layer.weight.numel() * share) for layer in layers] for share in SHARES)]
    for counts in choices:
        kept = [largest(layer, count) for layer, count in zip(layers, counts, strict=True)]
        with torch.no_grad():
            rows.append(row("magnitude", compare(net, sparse_net_of(net, kept), test, EPS)))
    dense = {"connections": sum(found.before.connections), "clean": found.before.clean}
    about = {"model": MODEL, "eps": "0.1", "training_images": TRAINING, "test_images": TEST}
    dense = {**dense, "certified": found.before.certified}
    write_json(Path(sys.argv[1]), {**about, "dense": dense, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
