"""The net: structure, bounds, saving and loading, running means at infinity."""

import contextlib
import json
import math
import subprocess
import sys
import types
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.attacks import attack
from linfnet.certificates import certify
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, read_tensors, write_tensors
from linfnet.nn import Classifier, LinfNet, LpDistance, Normalize, means_at_infinity, reestimate_means
from linfnet.nn.model_path import PRETRAINED, class_names
from linfnet.results import Accuracies, Result, Results, TrainingResult

SEEDS = st.integers(0, 2**32 - 1)


def small_net(**options: object) -> LinfNet:
    return LinfNet((2, 3, 3), 4, (11, 13), mean=(0.4, 0.5), std=0.25, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shape", "depth", "parameters"), [((3, 32, 32), 6, 120_637_451), ((1, 28, 28), 5, 82_708_491)]
)
def test_the_published_nets_have_their_size(shape: tuple[int, int, int], depth: int, parameters: int):
    with torch.device("meta"):
        net = LinfNet(shape, 10, (5120,) * (depth - 1))
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters


def test_hidden_layers_shift_and_the_last_has_a_bias():
    first, middle, last = small_net().layers
    assert first.shift is not None
    assert middle.shift is not None
    assert last.shift is None
    assert first.bias is None
    assert middle.bias is None
    assert last.bias is not None
    plain = small_net(hidden_bias=True, mean_shift=False).layers
    assert all(layer.bias is not None and layer.shift is None for layer in plain)


def test_the_sign_of_the_logits():
    torch.manual_seed(0)
    net, images = small_net().eval(), torch.rand(5, 2, 3, 3)
    negated = net(images)
    net.negate_logits = False
    assert torch.equal(net(images), -negated)


def test_p_sets_all_layers_and_at_infinity_restores():
    net = small_net(p=8.0).train()
    net.p = 12.5
    assert [layer.p for layer in net.layers] == [12.5] * 3
    with contextlib.suppress(KeyError), net.at_infinity():
        assert net.p == math.inf
        assert not net.training
        raise KeyError
    assert net.p == 12.5
    assert all(module.training for module in net.modules())


@given(SEEDS, st.floats(0, 0.5), st.booleans())
def test_random_nets_are_lipschitz_in_pixels(seed: int, size: float, negate: bool):
    torch.manual_seed(seed)
    net = small_net(negate_logits=negate).double()
    net(torch.rand(20, 2, 3, 3, dtype=torch.float64))  # update the running means
    net.eval()
    images = torch.rand(8, 2, 3, 3, dtype=torch.float64)
    moved = images + size * (2 * torch.rand_like(images) - 1)
    change = (net(moved) - net(images)).abs().amax(1)
    assert net.lipschitz == 4.0
    assert (change <= net.lipschitz * (moved - images).abs().flatten(1).amax(1) + 1e-12).all()


@given(SEEDS, st.floats(0, 0.3))
def test_bounds_enclose_the_float32_program(seed: int, size: float):
    torch.manual_seed(seed)
    net = small_net().eval()
    images = torch.rand(6, 2, 3, 3)
    lower, upper = images - size, images + size
    low, high = net.bounds(lower, upper)
    for _ in range(5):
        inside = torch.clamp(lower + (upper - lower) * torch.rand_like(images), lower, upper)
        logits = net(inside)
        assert (low <= logits).all()
        assert (logits <= high).all()
    exact = net.bounds(images, images)
    assert torch.equal(exact[0], net(images))
    assert torch.equal(exact[1], net(images))


def test_empty_batches():
    net, nothing = small_net().eval(), torch.zeros(0, 2, 3, 3)
    assert net(nothing).shape == (0, 4)
    assert [bound.shape for bound in net.bounds(nothing, nothing)] == [(0, 4), (0, 4)]


def test_at_infinity_restores_each_layer():
    net = small_net(p=8.0)
    net.layers[1].p = 3.0
    with net.at_infinity():
        assert net.layers[1].p == math.inf
    assert [layer.p for layer in net.layers] == [8.0, 3.0, 8.0]


def test_training_compiles_once():
    net = small_net(p=8.0)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for _ in range(12):  # more than the limit of recompilations
        images = torch.rand(4, 2, 3, 3)
        logits = compiled(images)
        logits.sum().backward()
        torch.testing.assert_close(logits, net(images))


def test_wrong_images_are_named():
    with pytest.raises(ArgumentError, match=r"images have shape \(5, 1, 8, 8\); the net expects \[B, 2 x 3 x 3\]"):
        small_net()(torch.rand(5, 1, 8, 8))
    for shape in ((5, 3, 3, 2), (3, 3, 2)):
        with pytest.raises(ArgumentError, match=r"expects \[B, 2 x 3 x 3\]; the channels are last, expected first"):
            small_net()(torch.rand(shape))


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 1},
        {"hidden": (0,)},
        {"image_shape": ()},
        {"image_shape": 12},
        {"image_shape": (3, 0)},
        {"image_shape": (2.5,)},
        {"hidden": 5},
        {"std": (0.1, 0.2)},
        {"std": 0.0},
        {"mean": (1.0, 2.0)},
    ],
)
def test_impossible_nets(options: dict):
    arguments = {"image_shape": (3, 2, 2), "classes": 4, "hidden": (5,), **options}
    with pytest.raises(ArgumentError):
        LinfNet(**arguments)


class TestFolder:
    def test_save_and_load_keep_every_bit(self, tmp_path: Path):
        torch.manual_seed(0)
        net = small_net(hidden_bias=True, negate_logits=False)
        images = torch.rand(5, 2, 3, 3)
        net(images)
        net.save(tmp_path / "model", class_names=["a", "b", "c", "d"])
        loaded = LinfNet.load(tmp_path / "model")
        assert not loaded.training
        assert torch.equal(loaded(images), net.eval()(images))
        files = sorted(path.name for path in (tmp_path / "model").iterdir())
        assert files == ["README.md", "config.json", "model.safetensors"]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_what_load_would_refuse_is_not_saved(self, tmp_path: Path, dtype: torch.dtype):
        net = small_net().to(dtype)
        with pytest.raises(
            ArgumentError, match=f"of the net has dtype {dtype}; expected torch.float32: save net.float()"
        ):
            net.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()
        net.float().save(tmp_path / "model")
        LinfNet.load(tmp_path / "model")

    @pytest.mark.process
    def test_a_new_process_gives_the_same_bits(self, tmp_path: Path):
        torch.manual_seed(0)
        net, images = small_net(), torch.rand(5, 2, 3, 3)
        net(images)
        net.save(tmp_path / "model")
        write_tensors(tmp_path / "images.safetensors", {"images": images}, {})
        code = (
            "import sys; from pathlib import Path; from linfnet import LinfNet; from linfnet.files import *\n"
            "folder = Path(sys.argv[1]); images = read_tensors(folder / 'images.safetensors')[0]['images']\n"
            "logits = LinfNet.load(folder / 'model')(images)\n"
            "write_tensors(folder / 'logits.safetensors', {'logits': logits}, {})"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert torch.equal(read_tensors(tmp_path / "logits.safetensors")[0]["logits"], net.eval()(images))

    def test_the_card_tells_what_the_net_is_and_what_was_measured(self, tmp_path: Path):
        training = TrainingResult(Accuracies(0.98765, {Fraction(1, 10): 0.5}), None, 3, 12.0, 0, 100)
        linf = Result("mnist", "test", 5, Fraction(8, 255), 0.9, 0.8, {"margin": 0.6, "interval": 0.7}, limit=5)
        results = Results(training, (linf, Result("mnist", "test", 5, Fraction(0), 0.9, 0.8, {"other": 0.5})))
        small_net().save(tmp_path, class_names=["ant", "bee", "cat", "dog"], results=results)
        card = (tmp_path / "README.md").read_text()
        for text in ("2×3×3 images", "4 classes", "11×13", "4-Lipschitz", "ant, bee, cat, dog", "3 epochs in 12 s"):
            assert text in card
        for line in (
            "| ε | clean | PGD-100 | certified by margin | certified by interval | certified by other |",
            "| MNIST, test | 5 | 8/255 | 90.00 | 80.00 | 60.00 | 70.00 |  |",
            "| MNIST, test | 5 | 0 | 90.00 | 80.00 |  |  | 50.00 |",
        ):
            assert line in card
        small_net().save(tmp_path, results=Results(training))
        assert "rounding ignored: clean 98.77, certified 50.00 at ε = 0.1." in (tmp_path / "README.md").read_text()
        small_net().save(tmp_path)
        assert "saved without results" in (tmp_path / "README.md").read_text()

    def test_weights_that_are_not_finite(self, tmp_path: Path):
        net = small_net()
        with torch.no_grad():
            net.layers[0].weight[0, 0] = math.nan
        net.save(tmp_path)
        with pytest.raises(LinfnetError, match=r"'layers\.0\.weight' contains NaN or infinity"):
            LinfNet.load(tmp_path)

    def test_the_packaged_net_is_small_and_a_folder_of_its_name_comes_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        assert LinfNet.load("mnist-small").image_shape == (1, 28, 28)
        assert (PRETRAINED / "mnist-small" / "model.safetensors").stat().st_size < 2_000_000
        small_net().save("mnist-small")
        assert LinfNet.load("mnist-small").image_shape == (2, 3, 3)

    def test_a_model_on_the_hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        small_net().save(tmp_path)
        hub = types.ModuleType("huggingface_hub")

        def snapshot(name: str, allow_patterns: list[str]) -> str:
            assert allow_patterns == ["config.json", "model.safetensors"]
            if name != "me/net":
                raise OSError("no such repository\nand more")
            return str(tmp_path)

        hub.snapshot_download = snapshot
        hub.errors = types.SimpleNamespace(HfHubHTTPError=KeyError)
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        assert LinfNet.load("hf://me/net").hidden == (11, 13)
        assert LinfNet.load(Path("hf://me/net")).hidden == (11, 13)
        with pytest.raises(LinfnetError, match=r"you/net cannot be downloaded from the hub: no such repository$"):
            LinfNet.load("hf://you/net")
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(LinfnetError, match=r"pip install 'linfnet\[hub\]'"):
            LinfNet.load("hf://me/net")

    def test_broken_folders(self, tmp_path: Path):
        small_net().save(tmp_path)
        weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
        whole, settings = weights.read_bytes(), read_table(config)

        weights.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(LinfnetError, match="truncated or not a safetensors file"):
            LinfNet.load(tmp_path)
        weights.write_bytes(b"PK\x03\x04 something else")
        with pytest.raises(LinfnetError, match="truncated or not a safetensors file"):
            LinfNet.load(tmp_path)
        weights.unlink()
        with pytest.raises(LinfnetError, match="does not exist"):
            LinfNet.load(tmp_path)
        weights.write_bytes(whole)
        for change, message in [
            ({"hidden": [11, 12]}, "has shape"),
            ({"hidden": [11]}, "another net"),
            ({"format": "other"}, "format is 'other'"),
            ({"colour": 1}, "does not describe a net"),
            ({"p": 8.0}, "the config contains 'p', which is not part of"),
            ({"image_shape": [1, 3, 3], "mean": [0.5]}, "has shape"),
        ]:
            config.write_text(json.dumps({**settings, **change}))
            with pytest.raises(LinfnetError, match=message):
                LinfNet.load(tmp_path)
        for lost in ("mean", "std", "hidden", "mean_shift", "hidden_bias", "negate_logits"):
            config.write_text(json.dumps({key: value for key, value in settings.items() if key != lost}))
            with pytest.raises(LinfnetError, match=f"it lacks '{lost}'"):
                LinfNet.load(tmp_path)
        for text in ("[]", "{", ""):
            config.write_text(text)
            with pytest.raises(LinfnetError, match=r"config\.json"):
                LinfNet.load(tmp_path)


class TestMeans:
    def batches(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.rand(16, 2, 3, 3, generator=generator) for _ in range(3)]

    def test_means_of_small_p_are_replaced_by_those_at_infinity(self):
        torch.manual_seed(0)
        net = small_net(p=8.0).train()
        for batch in self.batches() * 20:
            net(batch)
        reestimate_means(net, self.batches())
        assert net.p == 8.0
        assert net.training
        first = net.layers[0]
        with torch.no_grad():
            first.p = math.inf
            expected = torch.stack(
                [first.eval()(net.normalize(b).flatten(1)).mean(0) + first.shift.running_mean for b in self.batches()]
            ).mean(0)
        torch.testing.assert_close(first.shift.running_mean, expected)
        assert first.shift.momentum == 0.1

    def test_earlier_estimates_are_forgotten(self):
        torch.manual_seed(0)
        net = small_net()
        first, *others = self.batches()
        reestimate_means(net, others)
        reestimate_means(net, [first])
        twice = net.state_dict()["layers.0.shift.running_mean"].clone()
        reestimate_means(net, [first])
        assert torch.equal(net.layers[0].shift.running_mean, twice)
        with torch.no_grad():
            distances = net.layers[0].eval()(net.normalize(first).flatten(1)) + twice
        torch.testing.assert_close(twice, distances.mean(0))

    def test_the_context_restores_everything(self):
        torch.manual_seed(0)
        net = small_net(p=8.0).train()
        for batch in self.batches():
            net(batch)
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        with means_at_infinity(net, self.batches) as inside:
            assert inside.p == math.inf
            assert not inside.training
            assert not torch.equal(net.layers[0].shift.running_mean, before["layers.0.shift.running_mean"])
        assert net.p == 8.0
        assert net.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_long_class_names_are_refused(tmp_path: Path):
    LinfNet((1, 2, 2), 2, (4,)).save(tmp_path, class_names=("cat" * 1000, "dog"))
    with pytest.raises(LinfnetError, match=r"a class name has 3,000 characters; expected at most 300$"):
        class_names(tmp_path, 2)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_replaced_normalisation_is_named(wrapped: bool):
    images, labels = torch.rand(2, 2, 3, 3), torch.tensor([0, 1])
    body = torch.nn.Sequential(torch.nn.Flatten(), LpDistance(18, 4))
    net = Classifier.wrap(body, (2, 3, 3), 4) if wrapped else small_net()
    uses = (net, lambda x: certify(net, x), lambda x: attack(net, x, labels, eps="0.1"))
    net.normalize.std = torch.tensor([0.1, 0.2])
    for use in uses:
        with pytest.raises(ArgumentError, match=r"^normalize\.std of the net has 2 numbers; expected one$"):
            use(images)
    net.normalize = torch.nn.Identity()
    for use in uses:
        with pytest.raises(
            ArgumentError, match=r"^normalize of the net is a Identity; expected linfnet\.nn\.Normalize$"
        ):
            use(images)


@pytest.mark.parametrize("std", [(0.1, 0.2), torch.tensor([0.1, 0.2]), np.array([0.1, 0.2]), True])
def test_a_std_that_is_not_one_number(std: object):
    for build in (lambda: Normalize((0.5, 0.5), std), lambda: LinfNet((2, 3, 3), 4, std=std)):
        with pytest.raises(ArgumentError, match=r"^std is .*; expected one number"):
            build()
