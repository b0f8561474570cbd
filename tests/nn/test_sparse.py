"""Sparse distance layers and nets: equal to dense layers where they can be, their files, and what is refused."""

import itertools
import json
import math
import tracemalloc
import zlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from certificates.exact import awkward, awkward_net, thinned
from hypothesis import given
from hypothesis import strategies as st

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, write_table
from linfnet.nn import Classifier, LpDistance, SparseDistance, SparseNet
from linfnet.nn.sparse import remove_unread
from linfnet.nn.sparse_file import packed, unpacked
from linfnet.ops import default_implementation
from linfnet.systems import load_model

SEEDS = st.integers(0, 2**32 - 1)


def dense_and_sparse(seed: int, inputs: int = 13, outputs: int = 9) -> tuple[LpDistance, SparseDistance]:
    """A dense layer, and a sparse layer that has all of its connections."""
    generator = torch.Generator().manual_seed(seed)
    dense = LpDistance(inputs, outputs, bias=seed % 2 == 0, mean_shift=seed % 3 > 0).eval()
    with torch.no_grad():
        for tensor in dense.state_dict().values():
            tensor.copy_(awkward(tuple(tensor.shape), generator, 2))
    index, offsets = torch.arange(inputs).repeat(outputs), torch.arange(outputs + 1) * inputs
    mean = None if dense.shift is None else dense.shift.running_mean
    return dense, SparseDistance(dense.weight.flatten(), index, offsets, inputs, mean=mean, bias=dense.bias).eval()


@given(SEEDS)
def test_with_all_connections_it_is_the_dense_layer(seed: int):
    dense, sparse = dense_and_sparse(seed)
    x = awkward((2, 3, 13), torch.Generator().manual_seed(seed), 2)
    assert torch.equal(dense(x), sparse(x))
    wide = x.abs() / 3
    ends = zip(dense.bounds(x - wide, x + wide), sparse.bounds(x - wide, x + wide), strict=True)
    assert all(torch.equal(a, b) for a, b in ends)
    (a, sizes), (b, others) = dense.measure(x[0]), sparse.measure(x[0])
    assert torch.equal(a, b)
    assert all(torch.equal(one, other) for one, other in zip(sizes, others, strict=True))


@pytest.mark.parametrize("p", [math.inf, 1.0, 2.0, 7.5, 1000.0])
def test_gradients_are_those_of_the_dense_layer(p: float):
    """In float64, because a large p multiplies rounding errors."""
    dense, sparse = (layer.double() for layer in dense_and_sparse(2))
    dense.p = sparse.p = p
    x = torch.randn(5, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    grad = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outputs, found = [layer(x) for layer in (dense, sparse)], []
    torch.testing.assert_close(*outputs)
    for layer, output in zip((dense, sparse), outputs, strict=True):
        found.append(torch.autograd.grad(output, (x, layer.weight, layer.bias), grad))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1].flatten(), found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2])


def test_a_finite_p_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch):
    sparse = thinned(awkward_net(1, 0, (1, 5, 5), hidden=(30,)), 0).layers[0]
    sparse.p = 3.0
    x = torch.rand(20, 25, requires_grad=True)
    expected = torch.autograd.grad(sparse(x).sum(), (x, sparse.weight))
    monkeypatch.setattr("linfnet.ops.sparse_reference.BLOCK_ELEMENTS", 3 * sparse.connections)
    with default_implementation("reference"):
        torch.testing.assert_close(torch.autograd.grad(sparse(x).sum(), (x, sparse.weight)), expected)


@given(SEEDS)
def test_neurons_that_nobody_reads_do_not_matter(seed: int):
    net = thinned(awkward_net(seed, 1, (1, 2, 3), hidden=(20, 15)), seed, share=0.1)
    small = SparseNet(net.image_shape, 3, remove_unread(net.sparse_layers()), mean=net.mean, std=net.std).eval()
    small.negate_logits = net.negate_logits
    images = torch.rand(6, 1, 2, 3, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(net(images), small(images))
    for before, after in zip(small.layers, small.layers[1:], strict=False):
        assert torch.equal(after.index.unique(), torch.arange(before.out_features).int())
    assert sum(small.hidden) < sum(net.hidden)


CORRECT = {"weight": [1.0, 2.0, 3.0], "index": [0, 2, 1], "offsets": [0, 2, 3]}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("index", [0, 3, 1], "index contains 3; expected numbers from 0 to 2"),
        ("index", [-1, 2, 1], "index contains -1"),
        ("index", [2, 0, 1], "not in ascending order"),
        ("index", [0, 0, 1], "occurs twice"),
        ("index", [0.0, 2.0, 1.0], "index has dtype torch.float32; expected integers"),
        ("index", [0, 2], "expected offsets from 0 to the number of connections"),
        ("offsets", [0, 3, 3], "neuron 1 has 0 connections"),
        ("offsets", [0, 4, 3], "neuron 1 has -1 connections"),
        ("offsets", [1, 2, 3], "offsets run from 1 to 3"),
        ("offsets", [0, 1, 2], "offsets run from 0 to 2"),
        ("offsets", [], "offsets run from None to None"),
        ("weight", [1, 2, 3], "weight has dtype torch.int64; expected floats"),
        ("weight", [[1.0, 2.0, 3.0]], "weight has shape"),
        ("weight", [1.0, math.nan, 3.0], "weight contains NaN"),
    ],
)
def test_wrong_connections_are_refused(name: str, value: list[float], message: str):
    dtype = torch.int64 if value == [] else None
    parts = {key: torch.tensor(one) for key, one in CORRECT.items()} | {name: torch.tensor(value, dtype=dtype)}
    with pytest.raises(ArgumentError, match=message) as error:
        SparseDistance(**parts, in_features=3)
    assert "\n" not in str(error.value)


def test_layers_that_do_not_fit_are_refused():
    net = thinned(awkward_net(0, 0), 0)
    layers = net.sparse_layers()
    with pytest.raises(ArgumentError, match="layer 0 has 4 inputs; expected 3"):
        SparseNet((1, 1, 3), 3, layers[1:])
    with pytest.raises(ArgumentError, match="expected one for each of 4 classes"):
        SparseNet((1, 1, 3), 4, layers)
    with pytest.raises(ArgumentError, match="x has shape"):
        layers[0](torch.rand(2, 5))
    with pytest.raises(LinfnetError, match="a config does not describe the connections"):
        SparseNet.from_config(net.config())


@pytest.fixture
def net() -> SparseNet:
    """A net with rows long and short, and gaps below, at and above 255."""
    generator = torch.Generator().manual_seed(0)
    rows = [[0], [255], [254, 509, 510, 764], [1, 2, 3, 999], [256, 767], list(range(0, 1000, 7))]
    index, counts = torch.tensor([i for row in rows for i in row]), torch.tensor([len(row) for row in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    weight = torch.randn(len(index), generator=generator)
    first = SparseDistance(weight, index, offsets, 1000, mean=torch.rand(6, generator=generator))
    index = torch.tensor([0, 1, 5, 2, 3, 4])
    last = SparseDistance(torch.randn(6, generator=generator), index, torch.tensor([0, 3, 6]), 6, bias=torch.randn(2))
    built = SparseNet((1, 40, 25), 2, [first, last], mean=0.3, std=0.4).eval()
    built.scale.data.fill_(1.5)
    return built


@pytest.mark.parametrize("half", [False, True])
def test_a_file_contains_what_the_program_computes_with(net: SparseNet, tmp_path: Path, half: bool):
    images = torch.rand(30, 1, 40, 25)
    before = net(images)
    if half:
        net.round_weights_(torch.float16)
        assert not torch.equal(net(images), before)
    net.save(tmp_path / "net", class_names=["a", "b"])
    loaded = load_model(tmp_path / "net")
    assert isinstance(loaded, SparseNet)
    assert torch.equal(loaded(images), net(images))
    state, other = net.state_dict(), loaded.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) and tensor.dtype == other[name].dtype for name, tensor in state.items())
    stored = safetensors.torch.load_file(tmp_path / "net" / "model.safetensors")
    assert stored["layers.0.low"].shape == (155, 1 if half else 3)
    # Two bytes for each of 155 indices below 1000.
    assert len(zlib.decompress(stored["layers.0.steps"].numpy().tobytes())) == 155 * 2
    assert len(zlib.decompress(stored["layers.0.high"].numpy().tobytes())) == 155
    assert stored["layers.0.counts"].dtype == torch.uint16


def gaps(layer: SparseDistance) -> torch.Tensor:
    """Return the differences of indices as earlier versions wrote them."""
    found = []
    for start, end in itertools.pairwise(layer.offsets.tolist()):
        for before, index in itertools.pairwise([0, *layer.index[start:end].tolist()]):
            found += [255] * ((index - before) // 255) + [(index - before) % 255]
    return torch.tensor(found, dtype=torch.uint8)


def write_earlier(net: SparseNet, folder: Path, half: bool = False) -> None:
    """Save a net as earlier versions did."""
    net.save(folder)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    for number, layer in enumerate(net.layers):
        for name in ("low", "high", "steps"):
            del stored[f"layers.{number}.{name}"]
        weight = layer.weight.detach()
        stored |= {f"layers.{number}.weight": weight.half() if half else weight, f"layers.{number}.gaps": gaps(layer)}
    safetensors.torch.save_file(stored, folder / "model.safetensors")
    config = read_table(folder / "config.json")
    write_table(folder / "config.json", {key: value for key, value in config.items() if key != "weights"})


@pytest.mark.parametrize("half", [False, True])
def test_files_of_earlier_versions_are_read(net: SparseNet, tmp_path: Path, half: bool):
    if half:
        net.round_weights_(torch.float16)
    write_earlier(net, tmp_path, half)
    state, other = net.state_dict(), load_model(tmp_path).state_dict()
    assert all(torch.equal(tensor, other[name]) and tensor.dtype == other[name].dtype for name, tensor in state.items())


@pytest.mark.parametrize("inputs", [1, 2, 256, 257, 65536, 65537, 2**24 + 1])
def test_the_last_of_many_inputs_is_stored(inputs: int):
    index, weight = torch.tensor([0, inputs - 1][-min(inputs, 2) :]), torch.randn(min(inputs, 2))
    layer = SparseDistance(weight, index, torch.tensor([0, len(index)]), inputs)
    stored = {f"a.{name}": tensor for name, tensor in packed(layer).items()}
    assert torch.equal(unpacked(stored, "a.", inputs, 1, len(index), Path("file")).index, layer.index)


def test_equal_nets_give_equal_files(net: SparseNet, tmp_path: Path):
    for copy in "abcdef":
        net.save(tmp_path / copy)
    files = {(tmp_path / copy / "model.safetensors").read_bytes() for copy in "abcdef"}
    assert len(files) == 1


def test_a_file_does_not_expand_without_limit(net: SparseNet, tmp_path: Path):
    net.save(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = safetensors.torch.load_file(file)
    bomb = compressed([0] * (1 << 26))
    for name in ("high", "steps"):
        safetensors.torch.save_file({**stored, f"layers.1.{name}": bomb}, file)
        tracemalloc.start()
        with pytest.raises(LinfnetError, match=f"layers.1.{name}' does not contain"):
            load_model(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 22


def test_weights_that_float16_does_not_represent_are_refused(net: SparseNet):
    net.layers[0].weight.data[0] = 70000.0
    with pytest.raises(ArgumentError, match=r"a weight of layer 0 is too large for torch\.float16"):
        net.round_weights_(torch.float16)


def test_a_float64_net_is_not_saved(net: SparseNet, tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"save net\.float\(\)"):
        net.double().save(tmp_path)


def tensor(values: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values).to(dtype)


def compressed(values: list[int]) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.compress(bytes(values))), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers.1.steps": compressed([0, 1, 5, 2, 1, 1])}, "index contains 6; expected numbers from 0 to 5"),
        ({"layers.1.steps": compressed([0, 1, 0, 2, 1, 1])}, "a connection occurs twice"),
        ({"layers.1.steps": compressed([0, 1, 4, 2, 1])}, "does not contain the indices of 6"),
        ({"layers.1.steps": compressed([0, 1, 4, 2, 1, 1, 1])}, "does not contain the indices of 6"),
        ({"layers.1.steps": compressed([0, 1, 4, 2, 1, 1])[:-1].clone()}, "does not contain the indices of 6"),
        ({"layers.1.steps": tensor([], torch.uint8)}, "does not contain the indices of 6"),
        ({"layers.1.steps": tensor([1, 2], torch.uint8)}, "does not contain the indices of 6"),
        ({"layers.1.steps": tensor([0, 1], torch.int32)}, "has dtype torch.int32; expected torch.uint8"),
        ({"layers.1.high": compressed([63] * 5)}, "does not contain the last bytes of 6 weights"),
        ({"layers.1.high": compressed([127] * 6), "layers.1.low": tensor([[0, 0, 128]] * 6, torch.uint8)}, "infinity"),
        ({"layers.1.low": tensor([[0, 0]] * 6, torch.uint8)}, r"has shape \(6, 2\), the net expects \[6, 3\]"),
        ({"layers.1.low": tensor([[0]] * 5, torch.uint8)}, r"has shape \(5, 1\), the net expects \[6, 3\]"),
        ({"layers.1.counts": tensor([6, 0], torch.uint16)}, "no neuron without connections"),
        ({"layers.1.counts": tensor([7, -1], torch.int32)}, "no neuron without connections"),
        ({"layers.1.counts": tensor([3, 4], torch.uint16)}, "a sum of 7"),
        ({"layers.1.counts": tensor([6], torch.uint16)}, r"has shape \(1,\), the net expects \[2\]"),
        ({"layers.1.counts": tensor([2**30, 2**30], torch.int32)}, "a sum of 2147483648"),
        ({"layers.1.weight": torch.zeros(6)}, "lacks 'layers.1.gaps'"),
        ({"layers.1.weight": torch.zeros(6), "layers.1.gaps": tensor([0], torch.uint8)}, "'layers.1.high' beside"),
        ({"layers.1.bias": torch.zeros(3)}, r"has shape \(3,\)"),
        ({"layers.0.mean": torch.zeros(6).half()}, "has dtype torch.float16"),
        ({"layers.2.weight": torch.zeros(6)}, "contains 'layers.2.weight', which the net does not have"),
        ({"layers.1.steps": None}, "lacks 'layers.1.steps'"),
        ({"scale": None}, "'scale' is not one float32 number"),
    ],
)
def test_damaged_files_are_refused(net: SparseNet, tmp_path: Path, changes: dict, message: str):
    net.save(tmp_path)
    check_damage(tmp_path, changes, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers.1.gaps": tensor([0, 1, 5, 2, 1, 1], torch.uint8)}, "index contains 6; expected numbers from 0 to 5"),
        ({"layers.1.gaps": tensor([0, 1, 0, 2, 1, 1], torch.uint8)}, "a connection occurs twice"),
        ({"layers.1.gaps": tensor([0, 1, 4, 2, 1, 255], torch.uint8)}, "does not contain the indices of 6"),
        ({"layers.1.gaps": tensor([0, 1, 4, 2, 1, 1, 255], torch.uint8)}, "does not contain the indices of 6"),
        ({"layers.1.gaps": tensor([], torch.uint8)}, "does not contain the indices of 6"),
        ({"layers.1.gaps": tensor([0, 1, 4, 2, 1, 1], torch.int32)}, "has dtype torch.int32; expected torch.uint8"),
        ({"layers.1.counts": tensor([6, 0], torch.uint16)}, "no neuron without connections"),
        ({"layers.1.counts": tensor([7, -1], torch.int32)}, "no neuron without connections"),
        ({"layers.1.counts": tensor([3, 4], torch.uint16)}, "a sum of 7"),
        ({"layers.1.counts": tensor([6], torch.uint16)}, r"has shape \(1,\), the net expects \[2\]"),
        ({"layers.1.counts": tensor([2**30, 2**30], torch.int32)}, "a sum of 2147483648"),
        ({"layers.1.weight": torch.zeros(5)}, r"has shape \(5,\), the net expects \[6\]"),
        ({"layers.1.weight": torch.zeros(6, dtype=torch.float64)}, "has dtype torch.float64"),
        ({"layers.1.weight": torch.full((6,), math.inf)}, "contains NaN or infinity"),
        ({"layers.1.bias": torch.zeros(3)}, r"has shape \(3,\)"),
        ({"layers.0.mean": torch.zeros(6).half()}, "has dtype torch.float16"),
        ({"layers.2.weight": torch.zeros(6)}, "contains 'layers.2.weight', which the net does not have"),
        ({"layers.1.gaps": None}, "lacks 'layers.1.gaps'"),
        ({"scale": None}, "'scale' is not one float32 number"),
    ],
)
def test_damaged_files_of_earlier_versions_are_refused(net: SparseNet, tmp_path: Path, changes: dict, message: str):
    write_earlier(net, tmp_path)
    check_damage(tmp_path, changes, message)


def check_damage(folder: Path, changes: dict, message: str) -> None:
    file = folder / "model.safetensors"
    stored = {**safetensors.torch.load_file(file), **changes}
    safetensors.torch.save_file({name: one for name, one in stored.items() if one is not None}, file)
    with pytest.raises(LinfnetError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": [5]}, "the net expects"),
        ({"hidden": [10**15]}, "the net expects"),
        ({"connections": [155, 10**15]}, "the net expects"),
        ({"connections": [155]}, "1 numbers of connections for 2 layers"),
        ({"hidden": "wide"}, "the config's hidden is wide; expected a list of numbers"),
        ({"hidden": [0]}, "expected a list of numbers above 0"),
        ({"hidden": []}, "connections for 1 layers"),
        ({"image_shape": [1, 40, 10**12]}, "the indices of 155 connections to 40000000000000 inputs"),
        ({"image_shape": [1, 40]}, "the indices of 155 connections to 40 inputs"),
        ({"image_shape": [1, 20, 25]}, "index contains"),
        ({"image_shape": None}, "the config does not describe a net"),
        ({"negate_logits": 1}, "expected true or false"),
        ({"std": None}, "std"),
        ({"extra": 1}, "extra"),
        ({"format": "other"}, "expected 'linfnet-model-1'"),
    ],
)
def test_configs_that_do_not_fit_are_refused(net: SparseNet, tmp_path: Path, changes: dict, message: str):
    """Sizes in the config allocate nothing: they must be those of the tensors."""
    net.save(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**read_table(file), **changes}))
    with pytest.raises(LinfnetError, match=message) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    for key in ("mean", "std", "classes", "connections"):
        net.save(tmp_path)
        file.write_text(json.dumps({name: one for name, one in read_table(file).items() if name != key}))
        with pytest.raises(LinfnetError, match=key):
            load_model(tmp_path)


def test_a_wrapped_net_may_have_sparse_layers():
    sparse = thinned(awkward_net(1, 0), 0)
    body = torch.nn.Sequential(torch.nn.Flatten(), *sparse.sparse_layers())
    net = Classifier.wrap(body.eval(), image_shape=(1, 1, 3), classes=3, mean=sparse.mean, std=sparse.std).eval()
    images = torch.rand(5, 1, 1, 3)
    assert torch.equal(net(images), -sparse(images) if sparse.negate_logits else sparse(images))
    assert torch.equal(net.measure(images)[1].total(), sparse.measure(images)[1].total())

    class Doubled(SparseDistance):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    body[1].__class__ = Doubled
    with pytest.raises(ArgumentError, match="it overrides forward"):
        Classifier.wrap(body, image_shape=(1, 1, 3), classes=3)
