"""SortNet as a system: its recipes are the published ones, and every command works on its runs."""

import math
import shutil
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from linfnet import load, load_model
from linfnet.cli.main import main
from linfnet.distributed.group import Group
from linfnet.errors import ArgumentError
from linfnet.losses import Mixture
from linfnet.nn import SortNet, reestimate_means
from linfnet.nn.normalization import MeanShift
from linfnet.recipes import Recipe, change_recipe, load_recipe, recipe_from_toml
from linfnet.results import AttackSettings, read_results
from linfnet.systems import system_of
from linfnet.systems.sortnet import Sortnet
from linfnet.train import Trainer

SMALL = """
[system]
name = "sortnet"
keep = 0.95
identity_init = false
[data]
name = "digits"
pad = 1
[model]
depth = 3
width = 48
[loss]
theta = "0.3"
mixing_start = 1.0
mixing_end = 0.05
[schedule]
epochs = [3, 12, 2]
[optimizer]
batch = 64
scale_decay = 0.02
[run]
checkpoint_every = 5
[evaluation]
eps = ["0.02"]
"""


def small(*changes: str) -> Recipe:
    return change_recipe(recipe_from_toml(SMALL, "a test", "small"), changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sortnet")
    (folder / "small.toml").write_text(SMALL)
    assert main(["train", str(folder / "small.toml"), "--out", str(folder / "run"), "--device", "cpu"]) == 0
    return folder / "run"


LONG, SHORT = (200, 2750, 50), (100, 1350, 50)
PUBLISHED = {
    # name: data, layers, eps, keep rate, theta, lambda_0, lambda_end, epochs, identity, clean, PGD, certified
    "cifar10-8-sortnet": ("cifar10", 6, "8/255", 0.85, "48/255", 0.2, 2e-3, LONG, False, 54.84, 41.5, 40.39),
    "cifar10-2-sortnet": ("cifar10", 6, "2/255", 0.75, "16/255", 1.0, 1e-2, LONG, False, 65.96, 57.03, 56.67),
    "mnist-0.1-sortnet": ("mnist", 5, "0.1", 0.7, "0.6", 0.1, 1e-3, SHORT, True, 99.01, 98.21, 98.14),
    "mnist-0.3-sortnet": ("mnist", 5, "0.3", 0.75, "0.9", 0.02, 2e-4, SHORT, True, 98.46, 94.64, 93.4),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_are_the_published_ones(name: str):
    recipe = load_recipe(name)
    data, layers, eps, keep, theta, first, last, epochs, identity, *reported = PUBLISHED[name]
    assert (recipe.data.name, recipe.model.depth, recipe.model.width) == (data, layers, 5120)
    assert (recipe.data.pad, recipe.data.flip) == ((3, True) if data == "cifar10" else (1, False))
    assert recipe.evaluation.eps == (Fraction(eps),)
    assert system_of(recipe) == Sortnet(keep=keep, terms=10, group=32, identity_init=identity)
    assert recipe.loss == Mixture(theta=Fraction(theta), mixing_start=first, mixing_end=last)
    assert (recipe.schedule.epochs, recipe.schedule.p_start, recipe.schedule.p_end) == (epochs, 8.0, 1000.0)
    optimizer = recipe.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.batch) == (0.9, 0.99, 1e-10, 512)
    assert (optimizer.lr, optimizer.scale_lr_factor, optimizer.scale_decay) == (0.02, 1.0, 0.02)
    assert optimizer.weight_decay == 0
    assert [recipe.reported.clean, recipe.reported.pgd, recipe.reported.certified] == reported


def test_it_trains_and_is_evaluated(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(run), "--limit", "100", "--steps", "5", "--device", "cpu"]) == 0
    assert "real arithmetic" not in capsys.readouterr().out
    attack = AttackSettings("pgd", 5)
    result = read_results(run).find("digits", Fraction(1, 50), limit=100, attack=attack)
    assert result.arithmetic == "float32"
    assert tuple(result.certified) == ("margin", "interval")
    assert 0.3 < result.best_certified <= result.attacked <= result.clean
    assert result.clean > 0.5


def test_attacks_keep_the_sandwich(run: Path, capsys: pytest.CaptureFixture[str]):
    attacks = ["--attacks", "pgd", "best-pgd", "smoothed", "square", "--steps", "4", "--queries", "10"]
    assert main(["attack", str(run), "--limit", "40", *attacks, "--device", "cpu", "--all"]) == 0
    assert "holds for every sample" in capsys.readouterr().out


def test_what_is_for_distance_nets_says_so(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(run), "--onnx", str(tmp_path / "net.onnx")]) == 2
    assert "'sortnet'" in capsys.readouterr().err
    assert main(["compress", str(run), "--out", str(tmp_path / "small")]) == 2
    assert "'sortnet'" in capsys.readouterr().err
    assert main(["certify", str(run), "--exact", "--limit", "3", "--out", str(tmp_path), "--device", "cpu"]) == 2
    assert "the net is a SortNet" in capsys.readouterr().err


def test_resumed_is_the_same(run: Path, tmp_path: Path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    newest, *older = sorted((copy / "checkpoints").iterdir(), reverse=True)
    assert older
    for file in (newest, copy / "model.safetensors", copy / "results.json"):
        file.unlink()
    assert main(["train", "--resume", str(copy), "--device", "cpu"]) == 0
    expected = load_model(run).state_dict()
    for key, tensor in load_model(copy).state_dict().items():
        assert torch.equal(tensor, expected[key]), key


def test_the_means_of_the_model_are_those_of_the_whole_augmented_training_set(run: Path):
    net, images = load_model(run), load("digits")
    assert isinstance(net, SortNet)
    trainer = Trainer(small(), images, None, torch.device("cpu"))
    batches = [pixels for pixels, _ in trainer.batches.epoch(17)]
    assert sum(map(len, batches)) == len(images)
    assert not torch.equal(torch.cat(batches).sort(0).values, images.pixels().sort(0).values)
    means = [module.running_mean.clone() for module in net.modules() if isinstance(module, MeanShift)]
    reestimate_means(net, batches)
    found = [module.running_mean for module in net.modules() if isinstance(module, MeanShift)]
    assert len(found) == 2
    assert all(torch.equal(a, b) for a, b in zip(means, found, strict=True))


def test_without_dropout_a_run_is_that_of_the_distance_net():
    images, test = load("digits").first(300), load("digits", "test").first(100)
    settings = ["schedule.epochs=[1, 3, 1]", "run.test_every=2"]
    nets = []
    without = recipe_from_toml(SMALL[SMALL.index("[data]") :], "a test", "small")
    for recipe in (small("system.keep=1.0", "system.identity_init=true"), without):
        trainer = Trainer(change_recipe(recipe, settings), images, test, torch.device("cpu"))
        result = trainer.run()
        nets.append((trainer.net.state_dict(), result, trainer.view.history))
    (ours, first, history), (theirs, second, other) = nets
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (first.test, first.train) == (second.test, second.train)
    assert history.column("loss") == other.column("loss")


def test_masks_depend_on_the_step_and_the_seed():
    recipe = small()
    trainer = Trainer(recipe, load("digits").first(200), None, torch.device("cpu"))
    trainer.net.train()
    pixels, labels = next(trainer.batches.epoch(0))

    def loss(step: int) -> float:
        return trainer.objective.system.loss(recipe, trainer.net, pixels, labels, trainer.state_at(step))[0].item()

    # p and lambda are constant in the first phase.
    assert loss(1) == loss(1)
    assert len({loss(step) for step in range(4)}) == 4


def test_the_scale_decays():
    recipe = small("scale_decay=0.5", "optimizer.eps=1e9", "scale_lr_factor=1", "lr=0.02")
    trainer = Trainer(recipe, load("digits").first(200), None, torch.device("cpu"))
    trainer.net.train()
    trainer._step(0, *next(trainer.batches.epoch(0)))  # with a huge eps, Adam's steps vanish
    assert trainer.net.scale.item() == pytest.approx(1 - 0.02 * 0.5, rel=1e-6)
    assert math.isclose(trainer.optimizer.param_groups[1]["lr"], 0.02)


def test_batches_are_not_shared_by_processes():
    with pytest.raises(ArgumentError, match="the run has 2 processes, but system 'sortnet' needs all images"):
        Trainer(small(), load("digits").first(100), None, torch.device("cpu"), group=Group(0, 2))
