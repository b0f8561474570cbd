"""Every constant of the paper's hyper-parameter table is repeated here as a literal."""

import tomllib
from fractions import Fraction
from importlib import resources
from pathlib import Path

import pytest

from linfnet.errors import LinfnetError
from linfnet.losses import Hinge, Mixture
from linfnet.recipes import Recipe, change_recipe, load_recipe, recipe_from_toml, recipe_names, recipe_to_toml
from linfnet.recipes.recipe import Reported
from linfnet.systems import system_of

PUBLISHED = {
    # name: data, layers, eps, theta, lambda_0, lambda_end, epochs, total, padding, flip
    "mnist-0.1": ("mnist", 5, "0.1", "0.6", 0.05, 2e-4, (25, 375, 50), 450, 1, False),
    "mnist-0.3": ("mnist", 5, "0.3", "0.9", 0.05, 2e-4, (25, 375, 50), 450, 1, False),
    "cifar10-2": ("cifar10", 6, "2/255", "20/255", 0.05, 2e-3, (100, 1150, 50), 1300, 3, True),
    "cifar10-8": ("cifar10", 6, "8/255", "48/255", 0.1, 5e-4, (100, 1150, 50), 1300, 3, True),
    "cifar10-16": ("cifar10", 6, "16/255", "80/255", 0.1, 2e-4, (100, 1150, 50), 1300, 3, True),
}
REPORTED = {
    "mnist-0.1": (98.93, 98.03, 97.95),
    "mnist-0.3": (98.56, 94.73, 93.20),
    "cifar10-2": (60.61, 54.28, 54.12),
    "cifar10-8": (54.30, 41.84, 40.06),
    "cifar10-16": (48.50, 32.73, 29.04),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_hyper_parameters(name: str):
    recipe = load_recipe(name)
    data, layers, eps, theta, first, last, epochs, total, pad, flip = PUBLISHED[name]
    assert (recipe.data.name, recipe.data.pad, recipe.data.flip, recipe.data.limit) == (data, pad, flip, 0)
    assert (recipe.model.depth, recipe.model.width) == (layers, 5120)
    assert recipe.evaluation.eps == (Fraction(eps),)
    loss = Mixture(theta=Fraction(theta), mixing_start=first, mixing_end=last, mixing_zero_at_infinity=False)
    assert recipe.loss == loss
    assert recipe.schedule.epochs == epochs
    assert recipe.schedule.phases().total == total
    assert (recipe.schedule.p_start, recipe.schedule.p_end) == (8.0, 1000.0)
    optimizer = recipe.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.9, 0.99, 1e-10)
    assert (optimizer.lr, optimizer.scale_lr_factor, optimizer.batch) == (0.03, 0.2, 512)
    assert (recipe.reported.clean, recipe.reported.pgd, recipe.reported.certified) == REPORTED[name]


PUBLISHED_2021 = {
    # name: data, layers, eps, theta, epochs, padding, flip, clean, PGD-20, certified
    "mnist-0.1-2021": ("mnist", 5, "0.1", "0.8", (50, 300, 50), 1, False, 98.66, 97.79, 97.70),
    "mnist-0.3-2021": ("mnist", 5, "0.3", "0.9", (50, 300, 50), 1, False, 98.54, 94.71, 92.64),
    "cifar10-2-2021": ("cifar10", 6, "2/255", "32/255", (100, 650, 50), 4, True, 60.33, 51.45, 50.94),
    "cifar10-8-2021": ("cifar10", 6, "8/255", "80/255", (100, 650, 50), 4, True, 56.80, 37.46, 33.30),
    "cifar10-16-2021": ("cifar10", 6, "16/255", "128/255", (100, 650, 50), 4, True, 55.05, 26.02, 19.28),
}


@pytest.mark.parametrize("name", PUBLISHED_2021)
def test_the_training_of_2021(name: str):
    recipe = load_recipe(name)
    data, layers, eps, theta, epochs, pad, flip, *reported = PUBLISHED_2021[name]
    assert (recipe.data.name, recipe.data.pad, recipe.data.flip, recipe.data.limit) == (data, pad, flip, 0)
    assert (recipe.model.depth, recipe.model.width) == (layers, 5120)
    assert (recipe.evaluation.eps, recipe.evaluation.pgd_steps) == ((Fraction(eps),), 20)
    assert recipe.loss == Hinge(theta=Fraction(theta), max_share=0.75, warmup=False)
    assert recipe.loss.learns_scale is False
    assert (recipe.schedule.epochs, recipe.schedule.hold_lr) == (epochs, True)
    assert (recipe.schedule.p_start, recipe.schedule.p_end) == (8.0, 1000.0)
    optimizer = recipe.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.9, 0.99, 1e-10)
    assert (optimizer.lr, optimizer.weight_decay, optimizer.batch) == (0.02, 5e-3, 512)
    assert [recipe.reported.clean, recipe.reported.pgd, recipe.reported.certified] == reported


def test_the_recipes_of_the_paper_use_none_of_the_tricks_of_2021():
    for name in PUBLISHED:
        recipe = load_recipe(name)
        assert isinstance(recipe.loss, Mixture)
        assert (recipe.optimizer.weight_decay, recipe.schedule.hold_lr) == (0.0, False)
        assert recipe.evaluation.pgd_steps == 100


def test_every_published_row_and_the_demonstration_have_a_recipe():
    assert {*PUBLISHED, *PUBLISHED_2021, "digits"} <= set(recipe_names())


def flat(text: str) -> dict[str, object]:
    tables = tomllib.loads(text)
    return {f"{s}.{k}": v for s, t in tables.items() if isinstance(t, dict) for k, v in t.items()}


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_name_only_what_differs(name: str):
    given = flat((resources.files("linfnet.recipes") / f"{name}.toml").read_text())
    objective = type(load_recipe(name).loss)
    defaults = flat(recipe_to_toml(Recipe(loss=objective()))) | {"loss.name": "mixture"}
    own = {key.removeprefix("system."): given.pop(key) for key in list(given) if key.startswith("system.")}
    assert [key for key, value in given.items() if defaults[key] == value] == []
    system = system_of(load_recipe(name))
    assert [key for key in own if key != "name" and getattr(system, key) == getattr(type(system)(), key)] == []


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_survives_its_file(name: str, tmp_path: Path):
    recipe = load_recipe(name)
    file = tmp_path / "copy.toml"
    file.write_text(recipe_to_toml(recipe))
    assert load_recipe(file) == recipe


def test_changes():
    recipe = load_recipe(
        "digits",
        ["width=64", "schedule.epochs=[1, 2, 3]", "theta=1/3", "data.flip = true", "lr=1", "evaluation.eps=8/255"],
    )
    assert recipe.model.width == 64
    assert recipe.schedule.epochs == (1, 2, 3)
    assert recipe.loss.theta == Fraction(1, 3)
    assert recipe.data.flip is True
    assert recipe.optimizer.lr == 1.0
    assert recipe.evaluation.eps == (Fraction(8, 255),)
    assert recipe_from_toml(recipe_to_toml(recipe), "copy", "digits") == recipe


def test_another_objective_by_a_change_keeps_what_it_knows_of_the_file():
    recipe = load_recipe("mnist-0.1", ["max_share=0.5", "loss.name=hinge"])
    assert recipe.loss == Hinge(theta=Fraction(3, 5), max_share=0.5)
    assert recipe_from_toml(recipe_to_toml(recipe), "copy", "mnist-0.1") == recipe
    back = load_recipe("mnist-0.1-2021", ["loss.name=mixture", "mixing_end=0.1"])
    assert back.loss == Mixture(theta=Fraction(4, 5), mixing_end=0.1)


def test_a_recipe_without_a_named_objective_has_the_papers():
    assert recipe_from_toml("[loss]\nmixing_start = 0.2", "text", "old").loss == Mixture(mixing_start=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("widht=3", "unknown key 'widht'; did you mean 'model.width'"),
        ("modl.width=3", "did you mean 'model.width'"),
        ("eps=0.1", "ambiguous; expected one of optimizer.eps, evaluation.eps"),
        ("width=wide", "model.width is 'wide'; expected a whole number"),
        ("width=12.5", "model.width is 12.5; expected a whole number"),
        ("width=0", "model.width is 0; expected a number of at least 1"),
        ("epochs=[1, 2]", "expected a list of 3"),
        ("epochs=[0, 0, 0]", "epochs"),
        ("theta=1/0", "loss.theta is '1/0'; expected a number"),
        ("theta=0", "loss.theta is 0.0; expected a number above 0"),
        ("p_start=0.5", "schedule.p_start is 0.5; expected a number >= 1"),
        ("p_start=inf", "schedule.p_start is inf; expected a finite number"),
        ("p_end=4", "schedule.p_end is 4.0"),
        ("p_end=inf", "schedule.p_end is inf"),
        ("slopes_p=0.5", "schedule.slopes_p is 0.5; expected a finite number >= 1"),
        ("slopes_p=inf", "schedule.slopes_p is inf"),
        ("slopes_p_end=64", "schedule.slopes_p_end is 64.0, but schedule.slopes_p is not set"),
        ("rotate=181", "data.rotate is 181.0; expected a number of at most 180"),
        ("zoom=-0.1", "data.zoom is -0.1; expected a number of at least 0"),
        ("contrast=-0.1", "data.contrast is -0.1; expected a number of at least 0"),
        ("brightness=1.5", "data.brightness is 1.5; expected a number of at most 1"),
        ("clip_leak=-0.1", "loss.clip_leak is -0.1; expected a number of at least 0"),
        ("theta_end=0", "loss.theta_end is 0.0; expected a number above 0"),
        ("theta_end=48", "loss.theta_end is 48; expected at most 2"),
        ("clip_leak_end=1.5", "loss.clip_leak_end is 1.5; expected a number of at most 1"),
        ("lr=-1", "optimizer.lr is -1.0"),
        ("lr=nan", "optimizer.lr is nan"),
        ("beta2=1", "optimizer.beta2 is 1.0"),
        ("flip=1", "data.flip is 1; expected true or false"),
        ("evaluation.eps=[]", "evaluation.eps"),
        ("evaluation.eps=2", "evaluation.eps"),
        ("loss.name=hinj", "loss.name is 'hinj'; expected one of cross_entropy, hinge, .*; did you mean 'hinge'"),
        ("max_share=1", "unknown key 'max_share'"),
        ("weight_decay=-1", "optimizer.weight_decay is -1.0"),
        ("pgd_steps=0", "evaluation.pgd_steps is 0"),
        ("width", "expected key=value"),
        ("=3", "expected key=value"),
    ],
)
def test_wrong_changes_are_told(change: str, message: str):
    with pytest.raises(LinfnetError, match=message):
        load_recipe("digits", [change])


def test_wrong_files_are_told(tmp_path: Path):
    with pytest.raises(LinfnetError, match="unknown recipe 'cifar10-9'; did you mean 'cifar10-"):
        load_recipe("cifar10-9")
    with pytest.raises(LinfnetError, match="cannot be read"):
        load_recipe(tmp_path / "absent.toml")
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nwidht = 3\n")
    with pytest.raises(LinfnetError, match=r"unknown key 'model\.widht'; did you mean 'model\.width'"):
        load_recipe(file)
    file.write_text("[model\n")
    with pytest.raises(LinfnetError, match="not valid TOML"):
        load_recipe(file)
    file.write_text("[model]\nwidth = 32\n")
    assert load_recipe(file).name == "mine"


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("evaluation.eps=0.1", False),
        ("data.name=fashion-mnist", False),
        ("system.name=hybrid", False),
        ("data.name=mnist", True),
        ('evaluation.eps=["0.3", "0.1"]', True),
        ("width=64", True),
    ],
)
def test_what_was_reported_is_not_of_other_images_another_epsilon_or_another_system(change: str, kept: bool):
    reported = load_recipe("mnist-0.3", [change]).reported
    assert reported == (load_recipe("mnist-0.3").reported if kept else Reported())


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ("data.name=fashion-mnist", "Fashion-MNIST at eps = 0.3, settings of mnist-0.3"),
        ("data.path=my/photos", "photos at eps = 0.3, settings of mnist-0.3"),
        ("evaluation.eps=0.1", "MNIST at eps = 0.1, settings of mnist-0.3"),
        ("system.name=hybrid", "MNIST at eps = 0.3, settings of mnist-0.3, system hybrid"),
        ("width=64", "MNIST at eps = 0.3"),
    ],
)
def test_the_title_is_not_of_other_images_another_epsilon_or_another_system(change: str, title: str):
    assert load_recipe("mnist-0.3", [change]).title == title
    assert load_recipe("mnist-0.3", [change, "title=mine"]).title == "mine"


def test_changes_as_a_mapping():
    recipe = load_recipe("digits", {"model.width": 64, "epochs": (1, 2, 3), "theta": "1/3", "data.path": Path("2024")})
    assert (recipe.model.width, recipe.schedule.epochs, recipe.loss.theta) == (64, (1, 2, 3), Fraction(1, 3))
    assert recipe.data.path == "2024"
    assert change_recipe(recipe, {"data.name": "mnist"}).data.path is None


def test_own_data_in_a_file(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('[data]\npath = "photos"\nresize = [28, 28]\nmode = "grey"\nsplit_seed = 3\n')
    recipe = load_recipe(file)
    assert (recipe.data.path, recipe.data.resize, recipe.data.mode) == ("photos", (28, 28), "grey")
    assert recipe_from_toml(recipe_to_toml(recipe), "copy", "mine") == recipe
