"""ONNX files: the same bits as the net, for any batch, without a tensor of batch x out x in."""

import json
import math
import os
from pathlib import Path

import pytest
import torch
from certificates.exact import awkward_net

import linfnet
from linfnet.errors import LinfnetError
from linfnet.export import onnx, onnx_runner, verify_onnx, write_onnx
from linfnet.nn import LinfNet, reestimate_means

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("hidden", [(), (37,), (64, 33)], ids=str)
@pytest.mark.parametrize("options", [{}, {"hidden_bias": True}, {"mean_shift": False, "negate_logits": False}], ids=str)
def test_the_same_bits_for_any_batch(tmp_path: Path, hidden: tuple[int, ...], options: dict):
    torch.manual_seed(0)
    net = LinfNet((3, 5, 4), 7, hidden, mean=(0.1, 0.2, 0.3), std=0.3, p=8.0, **options)
    reestimate_means(net, [torch.rand(40, 3, 5, 4)])
    assert write_onnx(net, tmp_path / "net.onnx") == [tmp_path / "net.onnx"]
    run = onnx_runner(tmp_path / "net.onnx")
    with net.at_infinity(), torch.no_grad():
        for count in (1, 2, 31, 0):
            images = torch.rand(count, 3, 5, 4)
            assert torch.equal(run(images), net(images))


@pytest.mark.parametrize("widest", [1, 40, 126])
def test_the_same_bits_with_awkward_numbers(tmp_path: Path, widest: int):
    for seed in range(8):
        net = awkward_net(seed, widest)
        write_onnx(net, tmp_path / "net.onnx")
        verify_onnx(net, tmp_path / "net.onnx", torch.rand(20, 1, 1, 3))


def test_large_weights_have_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "INLINE_BYTES", 1000)
    net = LinfNet((1, 8, 8), 10, (96,)).eval()
    files = write_onnx(net, tmp_path / "net.onnx")
    assert [file.name for file in files] == ["net.onnx", "net.onnx.data"]
    assert files[0].stat().st_size < 6000 < 96 * 74 * 4 <= files[1].stat().st_size
    assert sorted(tmp_path.iterdir()) == files
    verify_onnx(net, tmp_path / "net.onnx", torch.rand(3, 1, 8, 8))
    write_onnx(net, tmp_path / "net.onnx")
    verify_onnx(net, tmp_path / "net.onnx", torch.rand(3, 1, 8, 8))


def test_a_killed_export_leaves_no_old_graph_with_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "INLINE_BYTES", 1000)
    old, new = (LinfNet((1, 8, 8), 10, (96,), mean=mean).eval() for mean in (0.1, 0.9))
    graph, weights = write_onnx(old, tmp_path / "net.onnx")
    before, rename = weights.read_bytes(), Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target == graph:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_onnx(new, graph)
    assert weights.read_bytes() != before
    assert list(tmp_path.iterdir()) == [weights]


def test_the_weights_of_a_killed_export_are_removed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx, "INLINE_BYTES", 1000)
    killed = tmp_path / ".net.onnx.01234567.tmp"
    killed.mkdir()
    (killed / "net.onnx.data").touch()
    os.utime(killed, (0, 0))
    files = write_onnx(LinfNet((1, 8, 8), 10, (96,)).eval(), tmp_path / "net.onnx")
    assert sorted(tmp_path.iterdir()) == files


def test_no_tensor_holds_batch_times_out_times_in():
    net = LinfNet((1, 8, 8), 10, (128,))
    model = onnx.build_onnx(net)
    bodies = [a.g for node in model.graph.node for a in node.attribute if a.name == "body"]
    assert len(bodies) == 2
    for body in bodies:
        assert body.input[1].type.tensor_type.shape.dim[0].dim_value <= onnx.CHUNK
    assert not any(
        node.op_type == "Sub" and "layers" in node.name and "shifted" not in node.name for node in model.graph.node
    )


def test_a_file_of_another_net_is_refused(tmp_path: Path):
    torch.manual_seed(0)
    nets = [LinfNet((1, 8, 8), 10, (16,)).eval() for _ in range(2)]
    write_onnx(nets[0], tmp_path / "net.onnx")
    with pytest.raises(LinfnetError, match="differs from the net by up to"):
        verify_onnx(nets[1], tmp_path / "net.onnx", torch.rand(4, 1, 8, 8))
    with pytest.raises(LinfnetError, match="float32"):
        write_onnx(nets[0].double(), tmp_path / "net.onnx")


def test_a_difference_of_one_bit_is_refused(tmp_path: Path):
    net, images = LinfNet((1, 8, 8), 10, (16,)).eval(), torch.rand(4, 1, 8, 8)
    write_onnx(net, tmp_path / "net.onnx")
    with torch.no_grad():
        bias = net.layers[-1].bias
        least = net(images).abs().min().item()
        bias[0] += 2.0 ** (math.floor(math.log2(least)) - 21)
    with pytest.raises(LinfnetError, match="differs from the net by up to"):
        verify_onnx(net, tmp_path / "net.onnx", images)


def test_the_metadata_says_what_the_graph_does_not(tmp_path: Path):
    net = LinfNet((3, 5, 4), 2, (8,), mean=(0.1, 0.2, 0.3), std=0.25).eval()
    write_onnx(net, tmp_path / "net.onnx", ["ant, red", "bée"])
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    assert found.pop("system") == "linf"
    assert found.pop("linfnet") == linfnet.__version__
    assert {name: json.loads(value) for name, value in found.items()} == {
        "image_shape": [3, 5, 4],
        "pixel_range": [0, 1],
        "mean": [0.1, 0.2, 0.3],
        "std": 0.25,
        "lipschitz_linf": net.lipschitz,
        "class_names": ["ant, red", "bée"],
    }
