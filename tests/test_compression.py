"""Compression of trained nets: which connections remain, what stays equal, and all commands on the result."""

import json
import re
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import linfnet
from linfnet import LinfNet, LinfnetError, SparseNet, compress
from linfnet.attacks import best_pgd, pgd
from linfnet.boxes import inner_box
from linfnet.certificates import certify_images
from linfnet.cli.main import main
from linfnet.compression import Compressed
from linfnet.data import ImageSet, load
from linfnet.errors import ArgumentError
from linfnet.export import verify_onnx, write_onnx
from linfnet.nn import SortNet, count_parameters
from linfnet.nn.label_margin import margin
from linfnet.results import read_results

EPS = Fraction(1, 10)


@pytest.fixture(scope="module")
def digits() -> tuple[ImageSet, ImageSet]:
    return load("digits", "train"), load("digits", "test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a small net that has learned the digits."""
    folder = tmp_path_factory.mktemp("compression") / "run"
    changes = ["width=48", "depth=3", "epochs=[4, 16, 2]", "test_every=0", "checkpoint_every=0"]
    assert main(["train", "digits", "--out", str(folder), "--device", "cpu", "--set", *changes]) == 0
    return folder


@pytest.fixture(scope="module")
def dense(run: Path) -> LinfNet:
    return LinfNet.load(run)


@pytest.fixture(scope="module")
def result(dense: LinfNet, digits: tuple[ImageSet, ImageSet]) -> Compressed:
    return compress(dense, digits[0], eps=EPS, passes=2, check=digits[1])


def test_counted_images_have_identical_logits(dense: LinfNet, digits: tuple[ImageSet, ImageSet], result: Compressed):
    pixels = digits[0].pixels()
    assert torch.equal(result.net(pixels), dense(pixels))
    assert result.counted == 2 * 3 * len(digits[0])
    assert not result.net.training


def test_images_differ_only_where_a_deciding_connection_is_missing(dense: LinfNet, digits: tuple[ImageSet, ImageSet]):
    """Few images are counted, so that some connections are missing. Distances can then only be smaller."""
    small = compress(dense, digits[0], images=40, passes=1, check=digits[1])
    assert 0 < small.identical < 1
    x, y = (net.normalize(digits[1].pixels()).flatten(1) for net in (dense, small.net))
    layer, thin = dense.layers[0], small.net.layers[0]
    sizes = (x.unsqueeze(1) - layer.weight).abs()
    # The neurons that remain are those with the same mean.
    rows = [(layer.shift.running_mean == mean).nonzero().flatten() for mean in thin.shift.running_mean]
    pairs = [(int(row[0]), new) for new, row in enumerate(rows) if len(row) == 1]
    assert len(pairs) > 10
    missing = 0
    for old, new in pairs:
        inputs = thin.index[thin.offsets[new] : thin.offsets[new + 1]].long()
        kept = torch.isin(sizes[:, old].argmax(1), inputs)
        same = layer(x)[:, old] == thin(y)[:, new]
        assert same[kept].all()
        assert (thin(y)[:, new] <= layer(x)[:, old]).all()
        missing += int((~kept).sum())
    assert missing > 0


def test_the_report_is_what_both_nets_do(dense: LinfNet, digits: tuple[ImageSet, ImageSet], result: Compressed):
    test = digits[1]
    for net, measured in ((dense, result.before), (result.net, result.after)):
        found = linfnet.certify(net, test.pixels(), test.labels)
        assert measured.clean == (found.radius >= 0).double().mean().item()
        assert measured.certified == found.at(EPS).double().mean().item()
    same = (dense(test.pixels()) == result.net(test.pixels())).all(1)
    assert result.identical == same.double().mean().item() > 0.9
    assert result.after.clean > 0.8
    assert sum(result.after.connections) < sum(result.before.connections) / 5
    assert result.after.connections == tuple(layer.connections for layer in result.net.sparse_layers())
    assert result.checked == len(test)
    assert json.loads(json.dumps(result.to_json()))["eps"] == "0.1"


def test_the_size_is_that_of_the_file(result: Compressed, tmp_path: Path):
    result.net.save(tmp_path)
    assert result.after.size == (tmp_path / "model.safetensors").stat().st_size
    # 4 bytes for a weight, little more than one for an index.
    tensors = sum(tensor.nbytes for tensor in result.net.saved_tensors().values())
    assert tensors < 5.2 * sum(result.after.connections) + 7 * sum((*result.after.hidden, 10)) + 100


def test_it_depends_only_on_the_seed(dense: LinfNet, digits: tuple[ImageSet, ImageSet]):
    options = {"eps": EPS, "images": 60, "passes": 1, "pad": 1, "flip": True}
    first, second, other = (compress(dense, digits[0], seed=seed, **options).net for seed in (1, 1, 2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert first.config() != other.config()


def test_each_pass_has_other_images(dense: LinfNet, digits: tuple[ImageSet, ImageSet]):
    one, two = (compress(dense, digits[0], images=60, passes=passes).after.connections for passes in (1, 2))
    assert sum(two) > sum(one)


def test_without_other_images_a_tenth_is_held_out(dense: LinfNet, digits: tuple[ImageSet, ImageSet]):
    done: list[int] = []
    found = compress(dense, digits[0], passes=1, advance=done.append)
    assert found.checked == len(digits[0]) // 10
    assert sum(done) == found.counted == len(digits[0]) - found.checked
    assert found.after.certified is None
    assert "held-out" in repr(found)


def test_options_change_the_number_of_connections(dense: LinfNet, digits: tuple[ImageSet, ImageSet]):
    def total(**options: object) -> int:
        return sum(compress(dense, digits[0], passes=1, check=digits[1], **options).after.connections)

    usual = total()
    assert total(at_least=5) < usual < total(runners_up=3) < total(runners_up=1)
    assert usual < total(eps=EPS)
    assert total(at_least=10**6) > 0  # one connection for each neuron that is read


def test_runners_up_are_the_second_largest():
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = LinfNet((1, 8, 8), 10, ()).eval()
    net.layers[0].weight.data.copy_(torch.randn(10, 64))
    small = compress(net, (image, [3]), passes=1, runners_up=1, check=(image, [3])).net
    x = net.normalize(image).flatten(1)
    expected = (x.unsqueeze(1) - net.layers[0].weight).abs()[0].topk(2).indices.sort().values
    assert torch.equal(small.layers[0].index.view(10, 2).long(), expected)


def test_a_compressed_net_is_compressed_further(dense: LinfNet, digits: tuple[ImageSet, ImageSet], result: Compressed):
    """The connections are those that the same images choose from the dense net."""
    options = {"eps": 0, "images": 200, "passes": 1, "check": digits[1]}
    for at_least in (1, 5, 10**6):
        direct, again = (compress(net, digits[0], at_least=at_least, **options) for net in (dense, result.net))
        assert again.before.connections == result.after.connections
        tensors = [found.net.state_dict() for found in (direct, again)]
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_float16_is_measured_after_rounding(dense: LinfNet, digits: tuple[ImageSet, ImageSet], tmp_path: Path):
    found = compress(dense, digits[0], eps=EPS, passes=1, check=digits[1], dtype="float16")
    found.net.save(tmp_path)
    loaded = linfnet.load_model(tmp_path)
    assert torch.equal(loaded(digits[1].pixels()), found.net(digits[1].pixels()))
    assert (
        found.after.certified == linfnet.certify(loaded, digits[1].pixels(), digits[1].labels).at(EPS).double().mean()
    )
    assert abs(found.after.clean - found.before.clean) < 0.02
    assert found.identical < 0.5


def test_certified_samples_are_not_broken(digits: tuple[ImageSet, ImageSet], result: Compressed):
    test = digits[1].first(120)
    found = certify_images(result.net, [(test.pixels(), test.labels)], [EPS])
    epsilons = (0.999 * found.best_radii).clamp(min=0)
    for p in (torch.inf, 16.0):
        moved = best_pgd(result.net, test.pixels(), test.labels, epsilons, steps=20, p=p)
        safe = found.best_radii > 0
        assert (margin(result.net(moved), test.labels)[safe] > 0).all()
    moved = best_pgd(result.net, test.pixels(), test.labels, (3 * epsilons).clamp(max=1), steps=20, p=16.0)
    assert (margin(result.net(moved), test.labels)[safe] <= 0).double().mean() > 0.3


def test_attacks_follow_the_gradient(digits: tuple[ImageSet, ImageSet], dense: LinfNet, result: Compressed):
    """The gradient at p = inf is that of the dense net where the logits are identical."""
    test = digits[1].first(100)
    same = (dense(test.pixels()) == result.net(test.pixels())).all(1)
    gradients = []
    for net in (dense, result.net):
        pixels = test.pixels().requires_grad_(True)
        gradients.append(torch.autograd.grad(margin(net(pixels), test.labels).sum(), pixels)[0][same])
    assert torch.equal(*gradients)
    lower, upper = inner_box(test.pixels(), EPS)
    moved = pgd(result.net, test.pixels(), test.labels, EPS, steps=5)
    assert ((lower <= moved) & (moved <= upper)).all()


def test_onnx_files_are_equal_bit_for_bit(result: Compressed, tmp_path: Path):
    write_onnx(result.net, tmp_path / "net.onnx")
    verify_onnx(result.net, tmp_path / "net.onnx", torch.rand(20, 1, 8, 8))
    single = compress(LinfNet((1, 8, 8), 10), load("digits", "test"), passes=1).net
    write_onnx(single, tmp_path / "single.onnx")
    verify_onnx(single, tmp_path / "single.onnx", torch.rand(20, 1, 8, 8))


def test_what_cannot_be_compressed_is_refused(dense: LinfNet, digits: tuple[ImageSet, ImageSet], result: Compressed):
    for net, options, message in (
        (SortNet((1, 8, 8), 10, keep=0.9), {}, "net is a SortNet of system 'sortnet'; expected a LinfNet"),
        (result.net, {"runners_up": 1}, "runners_up needs a dense net"),
        (dense, {"dtype": "float8"}, "dtype is 'float8'; expected one of float32, float16"),
        (dense, {"passes": 0}, "passes is 0"),
        (dense, {"at_least": -1}, "at_least is -1"),
        (dense, {"pad": 1.5}, "pad is 1.5; expected a whole number of at least 0"),
        (dense, {"eps": 8}, "did you mean 8/255"),
        (LinfNet((1, 8, 9), 10), {}, "the net expects"),
        (LinfNet((1, 8, 8), 10).double(), {}, "net computes in torch.float64"),
    ):
        with pytest.raises(ArgumentError, match=message):
            compress(net, digits[1], **options)
    with pytest.raises(ArgumentError, match="data has 1 images; expected at least 2"):
        compress(dense, digits[1].first(1))
    with pytest.raises(LinfnetError):
        compress(torch.nn.Linear(2, 2), digits[1])


@pytest.fixture(scope="module")
def folder(run: Path) -> Path:
    out = run.with_name("run-compressed")
    assert main(["compress", str(run), "--passes", "1", "--device", "cpu"]) == 0
    return out


class TestCommands:
    def test_the_folder(self, folder: Path, run: Path):
        comparison = json.loads((folder / "compression.json").read_text())
        assert comparison["after"]["size"] < comparison["before"]["size"] / 3
        assert json.loads((folder / "config.json").read_text())["system"] == "sparse"
        card = (folder / "README.md").read_text()
        assert "A compressed" in card
        for name in ("clean", "certified"):
            before, after = (f"{100 * comparison[net][name]:.2f}" for net in ("before", "after"))
            assert re.search(rf"{name}.* {after} \(before {before}\)", card)
        assert "22 epochs in" in card
        net, trained, dense = linfnet.load_model(folder), read_results(folder).training, read_results(run).training
        assert isinstance(net, SparseNet)
        assert trained.test is trained.train is None  # the accuracies of the dense net
        assert trained.seconds == dense.seconds
        assert trained.parameters == count_parameters(net) < dense.parameters

    def test_a_killed_command_can_be_repeated(self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        out, rename = tmp_path / "small", Path.replace
        command = ["compress", str(run), "--images", "50", "--passes", "1", "--device", "cpu", "--out", str(out)]

        def killed_at(last: int) -> None:
            calls = iter(range(1, last))

            def replace(path: Path, target: Path) -> Path:
                if next(calls, None) is None:
                    raise KeyboardInterrupt
                return rename(path, target)

            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace)
                assert main(command) == 130

        def contents() -> dict[str, bytes]:
            return {file.name: file.read_bytes() for file in out.iterdir()}

        assert main(command) == 0
        expected = contents()
        assert main(command) == 2  # the folder is complete
        for last in range(1, 8):  # config.json and README.md are written twice
            shutil.rmtree(out)
            killed_at(last)
            (out / ".model.safetensors.01234567.tmp").write_bytes(b"incomplete")
            assert main(command) == 0
            assert contents() == expected

    def test_a_model_of_the_user_is_not_replaced(self, folder: Path, run: Path, tmp_path: Path):
        saved = tmp_path / "model"
        linfnet.load_model(folder).save(saved)
        before = {file.name: file.read_bytes() for file in saved.iterdir()}
        for more in ("notes.txt", "compression.json", ".tmp"):
            assert main(["compress", str(run), "--out", str(saved)]) == 2
            assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
            (saved / more).write_text("")
            before[more] = b""

    def test_evaluate_compare_and_report(self, folder: Path, run: Path, capsys: pytest.CaptureFixture[str]):
        for model in (run, folder):
            assert main(["evaluate", str(model), "--steps", "5", "--device", "cpu"]) == 0
        found = read_results(folder).find("digits", EPS, attack=linfnet.results.AttackSettings("pgd", 5))
        assert set(found.certified) == {"margin", "interval"}
        assert found.arithmetic == "float32"
        assert found.best_certified <= found.attacked <= found.clean
        assert main(["compare", str(run), str(folder)]) == 0
        assert "sparse" in capsys.readouterr().out
        assert main(["report", str(folder)]) == 0
        page = (folder / "report.html").read_text()
        assert "sparse" in page
        assert page.count("data:image") > 10

    def test_certify_attack_and_predict(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        few = ["--limit", "30", "--device", "cpu"]
        assert main(["certify", str(folder), "--out", str(tmp_path), *few]) == 0
        attacks = ["--attacks", "pgd", "best-pgd", "smoothed", "square", "--steps", "4", "--queries", "10"]
        assert main(["attack", str(folder), *attacks, *few, "--all"]) == 0
        assert "holds for every sample" in capsys.readouterr().out
        np.save(tmp_path / "digit.npy", load("digits", "test").first(1).pixels()[0].numpy())
        assert main(["predict", str(folder), str(tmp_path / "digit.npy")]) == 0

    def test_export(self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        options = ["--onnx", str(tmp_path / "net.onnx"), "--vnnlib", str(tmp_path), "--card"]
        assert main(["export", str(folder), *options]) == 0
        assert "bitwise equal" in capsys.readouterr().out

    def test_serve(self, folder: Path):
        testclient = pytest.importorskip("fastapi.testclient")
        from linfnet.serve import Service, create_app

        service = Service(folder)
        assert service.describe().system == "sparse"
        client = testclient.TestClient(create_app(service), base_url="http://localhost")
        assert client.get("/").status_code == 200
        image = load("digits", "test").first(1).pixels()[0]
        assert service.predict(image).radius is not None
        assert service.attack(image, 5, lambda: False) is not None

    def test_float16_and_options(self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        out = tmp_path / "half"
        options = [
            "--images",
            "200",
            "--passes",
            "1",
            "--eps",
            "0",
            "--at-least",
            "2",
            "--runners-up",
            "9",
            "--float16",
        ]
        assert main(["compress", str(run), "--out", str(out), *options, "--device", "cpu"]) == 0
        assert "identical logits; connections were chosen on 200 images" in capsys.readouterr().out
        with torch.no_grad():
            assert all(
                torch.equal(layer.weight.half().float(), layer.weight) for layer in linfnet.load_model(out).layers
            )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["RUN", "--out", "RUN"], "which exists"),
            (["RUN", "--passes", "0", "--out", "new"], "--passes is 0"),
            (["RUN", "--eps", "8", "--out", "new"], "did you mean 8/255"),
            (["FOLDER", "--runners-up", "1", "--out", "new"], "--runners-up needs a dense net"),
            (["RUN", "--pad", "-1", "--out", "new"], "--pad is -1"),
            (["nothing"], "is not a folder"),
        ],
    )
    def test_mistakes(
        self, run: Path, folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ):
        names = {"RUN": str(run), "FOLDER": str(folder)}
        capsys.readouterr()
        assert main(["compress", *(names.get(one, one) for one in arguments)]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert message in lines[0]
        assert not Path("new").exists()

    def test_a_compressed_folder_is_compressed_further(self, folder: Path, tmp_path: Path):
        out, options = tmp_path / "out", ["--at-least", "20", "--passes", "1", "--pad", "1", "--device", "cpu"]
        assert main(["compress", str(folder), "--out", str(out), *options]) == 0
        comparison, first = (json.loads((one / "compression.json").read_text()) for one in (out, folder))
        assert comparison["before"]["connections"] == first["after"]["connections"]
        assert sum(comparison["after"]["connections"]) < 0.9 * sum(first["after"]["connections"])
        assert read_results(out).training.seconds == read_results(folder).training.seconds

    def test_a_recipe_cannot_build_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        recipe = tmp_path / "sparse.toml"
        recipe.write_text('[data]\nname = "digits"\n[system]\nname = "sparse"\n')
        assert main(["train", str(recipe), "--out", str(tmp_path / "out")]) == 2
        assert "linfnet compress" in capsys.readouterr().err
