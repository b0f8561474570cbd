"""Nets from collected connections."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from certificates.exact import awkward_net, thinned

from linfnet.errors import LinfnetError
from linfnet.nn import SparseNet
from tools import package_model
from tools.collected import read_collection, sparse_net


@pytest.fixture
def collected(tmp_path: Path) -> tuple[Path, SparseNet]:
    """A collection, and the net with all of its connections; the first of each neuron was the largest once."""
    net = thinned(awkward_net(4, 1, (1, 2, 2), hidden=(9, 7)), 4)
    parts: dict[str, dict[str, np.ndarray]] = {"rest": {"scale": np.float32(2.0)}, "test_logits": {}}
    for number, layer in enumerate(net.sparse_layers()):
        first = np.zeros(layer.connections, np.uint8)
        first[layer.offsets[:-1].numpy()] = 8
        arrays = {"cols": layer.index.numpy().astype(np.uint16), "weight": layer.weight.detach().numpy()}
        counts = {"plain": first, "moved": np.zeros_like(first), "second": 8 - first}
        parts[f"layer{number}"] = {"count": layer.offsets.diff().numpy(), **arrays, **counts}
        if layer.shift is not None:
            parts["rest"][f"layers.{number}.shift.running_mean"] = layer.shift.running_mean.numpy()
        if layer.bias is not None:
            parts["rest"][f"layers.{number}.bias"] = layer.bias.detach().numpy()
    parts["test_logits"]["logits"] = np.zeros((5, 3), np.float32)
    files = {"config.json": json.dumps({**net.config(), "hidden": [9, 7]}), "meta.json": '{"eps": "1/10"}'}
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        for name, arrays in parts.items():
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)
            files[f"{name}.npz"] = buffer.getvalue()
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return tmp_path / "c.tar", net


def test_a_net_of_collected_connections(collected: tuple[Path, SparseNet]):
    path, net = collected
    collection, images = read_collection(path), torch.rand(9, 1, 2, 2)
    assert torch.equal(sparse_net(collection, "all")(images), net(images))
    assert torch.equal(sparse_net(collection, "second")(images), net(images))
    assert sparse_net(collection, "all").scale == 2
    for which in ("plain", "first"):
        few = sparse_net(collection, which)
        assert all(layer.connections == layer.out_features for layer in few.sparse_layers())
    assert sparse_net(collection, "first", at_least=100).config() == few.config()


def test_a_net_that_fits(collected: tuple[Path, SparseNet], monkeypatch: pytest.MonkeyPatch):
    collection = read_collection(collected[0])
    net, least = package_model.fitting_net(collection, "second", None, torch.float32)
    assert least == 1
    monkeypatch.setattr(package_model, "LARGEST", net.saved_size() - 1)
    smaller, least = package_model.fitting_net(collection, "second", None, torch.float32)
    assert least == 2  # every second largest connection was counted once
    assert smaller.saved_size() < net.saved_size()
    with pytest.raises(LinfnetError, match="choose a larger --at-least"):
        package_model.fitting_net(collection, "second", 1, torch.float32)
