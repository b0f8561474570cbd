"""Systems are found by name, and every command works on runs of any system."""

import csv
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from linfnet import LinfNet, fit, load, load_model
from linfnet.certificates import certify_images
from linfnet.certificates.product_net import ProductNet
from linfnet.cli.main import main
from linfnet.distributed.group import Group
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_json, read_table, write_json
from linfnet.nn import Classifier, LpDistance, classifier
from linfnet.recipes import load_recipe, recipe_from_toml, recipe_names, recipe_to_toml
from linfnet.results import AttackSettings, read_results
from linfnet.systems import SYSTEMS, System, system, system_of
from linfnet.train import Trainer

CONVOLUTIONAL = 'architecture = "small"\neps_train = 0.05\nkappa_end = 0.5'
NOISY = 'architecture = "small"\nsigma = 0.4\nsamples = 100\nvotes = 4'
DISTANCES = "[model]\ndepth = 2\nwidth = 32"
# tests/test_compression.py tries compressed nets, tests/systems/test_sortnet.py tries SortNet, most other tests `linf`.
NAMES = sorted(set(SYSTEMS) - {"linf", "sortnet", "sparse"})


def small(name: str, system: str, epochs: list[int], lr: float, batch: int, more: str = "") -> str:
    """Return a recipe that trains within a few seconds; `system` and `more` are lines of [system] and sections."""
    return f"""
[system]
name = "{name}"
{system}
[schedule]
epochs = {epochs}
[optimizer]
lr = {lr}
batch = {batch}
[data]
name = "digits"
[run]
checkpoint_every = 4
[evaluation]
eps = ["0.02"]
{more}
"""


# Recipes for systems whose own recipes train longer than tests should, or reach too little on the digits.
SMALL = {
    "cap": small("cap", "eps_train = 0.04", [3, 1, 1], 5e-3, 128),
    "colt": small("colt", "eps_train = 0.04\nstages = 3\nsteps = 2\nstep_size = 0.5", [3, 2, 0], 5e-3, 128),
    "conv-stem": small("conv-stem", "", [2, 6, 1], 0.02, 64, DISTANCES),
    "consistency": small("consistency", NOISY, [5, 0, 0], 0.01, 64),
    "crown-lbp": small("crown-lbp", CONVOLUTIONAL, [2, 5, 2], 0.01, 64),
    "smoothadv": small("smoothadv", f"{NOISY}\nattack_eps = 0.3\nattack_steps = 2", [5, 0, 0], 0.01, 64),
    "crown-ibp": small("crown-ibp", CONVOLUTIONAL, [1, 7, 1], 0.01, 64),
    "ibp": small("ibp", CONVOLUTIONAL, [1, 7, 1], 0.01, 64),
    "sortnet-mlp": small("sortnet-mlp", "keep = 0.95\nhidden = 16\neps_train = 0.05", [2, 6, 1], 0.02, 64, DISTANCES),
    "smoothing": small("smoothing", NOISY, [9, 0, 0], 0.01, 64),
}

# The arithmetic for which the certificates of a system hold; of other systems, what their nets say.
ARITHMETIC = {name: SYSTEMS[name].net_type.arithmetic for name in NAMES} | dict.fromkeys(SMALL, "real")
ARITHMETIC |= dict.fromkeys(("conv-stem", "hybrid", "ibp", "sortnet-mlp"), "float32")


def recipe_of(name: str) -> str:
    """Return the recipe of SMALL, or a recipe of the system on the digits, with the changes of `--small`."""
    if name in SMALL:
        return SMALL[name]
    own = [recipe for recipe in recipe_names() if load_recipe(recipe).system_name == name]
    assert own, f"system {name!r} has no recipe in the package"
    changes = ["data.name=digits", "data.pad=0", "data.flip=false", "data.limit=0", "run.checkpoint_every=4"]
    changes = [*SYSTEMS[name].small, *changes, 'evaluation.eps=["0.02"]']
    return recipe_to_toml(load_recipe(max(own), changes))  # the last name is usually that of a recipe for a CPU


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each system."""
    folder = tmp_path_factory.mktemp("systems")
    for name in NAMES:
        (folder / f"{name}.toml").write_text(recipe_of(name))
        assert main(["train", str(folder / f"{name}.toml"), "--out", str(folder / name), "--device", "cpu"]) == 0
    return {name: folder / name for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
class TestCommands:
    def test_evaluation_is_labelled(self, runs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]):
        assert main(["evaluate", str(runs[name]), "--limit", "100", "--steps", "5", "--device", "cpu"]) == 0
        assert load_model(runs[name]).guarantee in " ".join(capsys.readouterr().out.split())
        attack = AttackSettings("pgd", 5)
        result = read_results(runs[name]).find("digits", Fraction(1, 50), limit=100, attack=attack)
        assert result.arithmetic == ARITHMETIC[name]
        assert tuple(result.certified) == load_model(runs[name]).certificate_names
        assert 0 < result.best_certified <= result.attacked <= result.clean
        assert result.clean > 0.5
        assert result.certify_seconds[result.best] > 0

    def test_radii_are_proven_and_written(self, runs: dict[str, Path], name: str, tmp_path: Path):
        assert main(["certify", str(runs[name]), "--limit", "20", "--out", str(tmp_path), "--device", "cpu"]) == 0
        net, digits = load_model(runs[name]), load("digits", "test").first(20)
        with (tmp_path / "radii.csv").open() as file:
            rows = list(csv.DictReader(file))
        radii = torch.tensor([float(row[f"{net.certificate_names[0]}_radius"]) for row in rows], dtype=torch.float64)
        found = certify_images(net, [(digits.pixels(), digits.labels)], [Fraction(1, 50)])
        assert found.arithmetic == ARITHMETIC[name]
        assert torch.equal(radii, found.radii[net.certificate_names[0]])
        assert found.clean == (radii >= 0).double().mean().item()
        # Bisection returns slightly less than the largest certified radius, never more.
        assert bool((found.certified[net.certificate_names[0]][0] | (radii < 0.02)).all())
        assert bool((~found.certified[net.certificate_names[0]][0] | (radii >= 0.02 - 2**-15)).all())

    def test_attacks_keep_the_sandwich(self, runs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]):
        attacks = ["--attacks", "pgd", "best-pgd", "smoothed", "square", "--steps", "4", "--queries", "10"]
        assert main(["attack", str(runs[name]), "--limit", "40", *attacks, "--device", "cpu", "--all"]) == 0
        assert "holds for every sample" in capsys.readouterr().out

    def test_an_image_is_classified(self, runs: dict[str, Path], name: str, tmp_path: Path):
        np.save(tmp_path / "digit.npy", load("digits", "test").first(1).pixels()[0].numpy())
        assert main(["predict", str(runs[name]), str(tmp_path / "digit.npy")]) == 0

    def test_what_is_for_distance_nets_says_so(
        self, runs: dict[str, Path], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        exported = name == "conv-stem"
        assert main(["export", str(runs[name]), "--onnx", str(tmp_path / "net.onnx")]) == (0 if exported else 2)
        assert exported or repr(name) in capsys.readouterr().err
        with pytest.raises(LinfnetError, match=name):
            LinfNet.load(runs[name])

    def test_the_card_says_what_the_proofs_are(self, runs: dict[str, Path], name: str):
        assert main(["export", str(runs[name]), "--card"]) == 0
        assert load_model(runs[name]).guarantee in (runs[name] / "README.md").read_text()

    def test_at_zero_certified_is_right(self, runs: dict[str, Path], name: str):
        net, digits = load_model(runs[name]), load("digits", "test").first(50)
        with torch.no_grad():
            right = net(digits.pixels()).argmax(1) == digits.labels
        found = certify_images(net, [(digits.pixels(), digits.labels)], [Fraction(0)])
        for name_of_certificate in net.certificate_names:
            assert torch.equal(found.certified[name_of_certificate][0], right)

    def test_resumed_is_the_same(self, runs: dict[str, Path], name: str, tmp_path: Path):
        copy = Path(shutil.copytree(runs[name], tmp_path / name))
        newest, *older = sorted((copy / "checkpoints").iterdir(), reverse=True)
        assert older
        for file in (newest, copy / "model.safetensors", copy / "results.json"):
            file.unlink()
        assert main(["train", "--resume", str(copy), "--device", "cpu"]) == 0
        expected = load_model(runs[name]).state_dict()
        for key, tensor in load_model(copy).state_dict().items():
            assert torch.equal(tensor, expected[key]), key


@pytest.mark.parametrize("name", ["ibp", "smoothing", "sortnet-mlp"])
def test_losses_of_whole_batches_are_not_shared_by_processes(name: str):
    recipe, images = recipe_from_toml(SMALL[name], "a test", name), load("digits").first(100)
    with pytest.raises(ArgumentError, match=f"the run has 2 processes, but system '{name}' needs all images"):
        Trainer(recipe, images, None, torch.device("cpu"), group=Group(0, 2))


def test_batch_norm_of_a_wrapped_net_is_not_shared_by_processes():
    net = Classifier.wrap(nn.Sequential(nn.Flatten(), LpDistance(64, 10)), (1, 8, 8), 10)
    net.body.append(nn.BatchNorm1d(10))
    with pytest.raises(ArgumentError, match="the run has 2 processes, but batch norm needs all images"):
        Trainer(load_recipe("digits"), load("digits"), None, torch.device("cpu"), net=net, group=Group(0, 2))


class TestFinding:
    def test_the_paper_s_net_is_the_default(self):
        assert load_recipe("digits").system_name == "linf"
        assert isinstance(load_model("mnist-small"), LinfNet)

    def test_loading_reads_the_config_once(self, monkeypatch: pytest.MonkeyPatch):
        paths = list[Path]()
        for module in (classifier, system):
            monkeypatch.setattr(module, "read_table", lambda path: paths.append(path) or read_json(path))
        load_model("mnist-small")
        assert len(paths) == 1

    def test_recipes_read_back_the_same(self):
        for name in ("mnist-0.3-hybrid", "cifar10-8-hybrid", "mnist-0.3-ibp"):
            recipe = load_recipe(name, ["system.eps_train=0.25"])
            again = recipe_from_toml(recipe_to_toml(recipe), "again", name)
            assert again == recipe
            assert system_of(again) == system_of(recipe)

    def test_only_registered_systems_are_loaded(self, tmp_path: Path):
        LinfNet((1, 2, 2), 2).save(tmp_path)
        write_json(tmp_path / "config.json", {**read_table(tmp_path / "config.json"), "system": "os"})
        with pytest.raises(LinfnetError, match=rf"system\.name is 'os'; expected one of {', '.join(SYSTEMS.names())}"):
            load_model(tmp_path)

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            (
                "system.name=hybird",
                f"system.name is 'hybird'; expected one of {', '.join(SYSTEMS.names())}; did you mean 'hybrid'?",
            ),
            ("system.hiden=3", "unknown key 'system.hiden'; did you mean 'hidden'?"),
            ("system.hidden=much", "system.hidden is 'much'; expected a whole number"),
            ("system.hidden=0", "system.hidden is 0; expected a number of at least 1"),
            ("system.eps_train=2", "system.eps_train is 2.0; expected a number of at most 1"),
            ("system.worst_share=1.5", "error: system.worst_share is 1.5; expected a number of at most 1"),
            ("system.worst_share=nan", "error: system.worst_share is "),
        ],
    )
    def test_mistakes_are_told_before_anything_is_written(
        self, change: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        recipe = tmp_path / "small.toml"
        recipe.write_text(recipe_of("hybrid"))
        assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--set", change]) == 2
        assert complaint in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_a_base_net_proves_nothing(self):
        class Silent(Classifier):
            system, certificate_names = "silent", ("none",)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return images.flatten(1)[:, :2]

        with pytest.raises(LinfnetError, match="Silent defines neither least_margin nor certified"):
            Silent((1, 1, 2), 2).certified(torch.rand(3, 1, 1, 2), torch.zeros(3, dtype=torch.long), Fraction(1, 10))


class OwnNet(Classifier):
    """A net of a user, without mistakes."""

    system, certificate_names = "own-system", ("interval",)

    def __init__(self, image_shape: tuple[int, ...], classes: int, width: int, *, mean: float, std: float):
        super().__init__(image_shape, classes, mean=mean, std=std)
        self.width = width
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(self.normalize(images))

    def least_margin(self, lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros(len(labels))

    def settings(self) -> dict[str, int]:
        return {"width": self.width}


class OwnNetWithoutName(OwnNet):
    system = "own"


class OwnNetWithAnotherName(OwnNet):
    system = "ibp"


class OwnNetWithoutSettings(OwnNet):
    settings = Classifier.settings


class OwnNetWithWrongSettings(OwnNet):
    def settings(self) -> dict[str, int]:
        return {"width": self.width, "depth": 2}


class OwnNetWithoutProof(OwnNet):
    least_margin = Classifier.least_margin


class OwnProductNetWithoutProof(OwnNet, ProductNet):
    least_margin = Classifier.least_margin


class OwnNetWithFormula(OwnNetWithoutProof):
    cheap = False

    def certified_radius(self, images: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros(len(labels))


class TestOwnSystems:
    """Mistakes in a system of a user are told before training, and nothing is written."""

    def train(self, monkeypatch: pytest.MonkeyPatch, built: type[Classifier], out: Path, **attributes: object) -> None:
        @dataclass(frozen=True)
        class Own(System):
            def build(self, recipe, info):
                return built(info.image_shape, len(info.classes), 8, mean=info.mean, std=info.std)

            def loss(self, recipe, net, pixels, labels, state):
                logits = net(pixels)
                return nn.functional.cross_entropy(logits, labels), logits

        for name, value in attributes.items():
            setattr(Own, name, value)
        monkeypatch.setattr(SYSTEMS, "_entries", {**SYSTEMS._entries, "own-system": Own})
        settings = {"system.name": "own-system", "epochs": [1, 0, 0], "limit": 100}
        fit("digits", settings=settings, out=out, device="cpu")

    @pytest.mark.parametrize("net", [OwnNet, OwnNetWithFormula])
    def test_a_net_without_mistakes_is_trained_and_loaded(
        self, net: type[Classifier], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        self.train(monkeypatch, net, tmp_path / "run", net_type=net)
        assert type(load_model(tmp_path / "run")) is net

    @pytest.mark.parametrize(
        ("net", "complaint"),
        [
            (OwnNetWithoutName, "OwnNetWithoutName.system is 'own'; expected 'own-system'"),
            (OwnNetWithAnotherName, "OwnNetWithAnotherName.system is 'ibp'; expected 'own-system'"),
            (OwnNetWithoutSettings, r"OwnNetWithoutSettings.settings\(\) does not return .* argument: 'width'"),
            (OwnNetWithWrongSettings, r"OwnNetWithWrongSettings.settings\(\) does not return .* argument 'depth'"),
            (OwnNetWithoutProof, "OwnNetWithoutProof defines neither least_margin nor certified"),
            (OwnProductNetWithoutProof, "OwnProductNetWithoutProof defines neither least_margin nor certified"),
        ],
    )
    def test_a_mistake_in_a_net_is_told(
        self, net: type[Classifier], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with pytest.raises(LinfnetError, match=complaint):
            self.train(monkeypatch, net, tmp_path / "run", net_type=net)
        assert not (tmp_path / "run").exists()

    def test_a_mistake_in_the_type_of_the_net_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        with pytest.raises(LinfnetError, match=r"Own.net_type is IbpNet; expected OwnNet, the class of its nets"):
            self.train(monkeypatch, OwnNet, tmp_path / "run", net_type=SYSTEMS["ibp"].net_type)
        with pytest.raises(LinfnetError, match=r"Own.net_type is not set; expected OwnNet"):
            self.train(monkeypatch, OwnNet, tmp_path / "run")
