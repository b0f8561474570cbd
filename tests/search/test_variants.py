import itertools
from pathlib import Path

import pytest

from linfnet.errors import ArgumentError, LinfnetError
from linfnet.recipes import load_recipe
from linfnet.search import Variant, grid, read_variants
from linfnet.search.plan import varied

PREPARED = Path(__file__).parents[2] / "benchmarks" / "variants"


def test_a_grid_has_all_combinations():
    assert grid([]) == []
    assert grid(["schedule.epochs=[8, 88, 4],[4, 92, 4]"]) == [
        Variant("epochs=[8, 88, 4]", ("schedule.epochs=[8, 88, 4]",)),
        Variant("epochs=[4, 92, 4]", ("schedule.epochs=[4, 92, 4]",)),
    ]
    assert [variant.changes for variant in grid(["lr=none,0.1", "theta=48/255"])] == [
        ("theta=48/255",),
        ("lr=0.1", "theta=48/255"),
    ]
    assert grid(["lr=none"]) == [Variant("unchanged")]


@pytest.mark.parametrize("varied", ["lr", "=1", "lr=", "lr=1,", "lr=,1", "lr=1,,2"])
def test_a_grid_needs_a_key_and_values(varied: str):
    with pytest.raises(ArgumentError, match="--vary got"):
        grid([varied])


def test_variants_from_a_file(tmp_path: Path):
    file = tmp_path / "variants.toml"
    file.write_text('[published]\n[both]\nloss.clip_leak = 0.1\ntheta = "48/255"\nschedule.epochs = [1, 2, 1]\n')
    assert read_variants(file) == [
        Variant("published"),
        Variant("both", ("loss.clip_leak=0.1", 'theta="48/255"', "schedule.epochs=[1, 2, 1]")),
    ]
    file.write_text("lr = 0.1\n")
    with pytest.raises(LinfnetError, match="'lr' outside of a table"):
        read_variants(file)
    with pytest.raises(LinfnetError, match="cannot be read"):
        read_variants(tmp_path / "none.toml")


@pytest.mark.parametrize("file", sorted(PREPARED.glob("*.toml")), ids=lambda file: file.stem)
def test_prepared_variants_are_valid(file: Path):
    recipe, variants = load_recipe("cifar10-2" if file.stem.endswith("-2") else "cifar10-8"), read_variants(file)
    recipes = [varied(recipe, variant) for variant in variants]
    assert recipes[0] == recipe
    assert all(one != other for one, other in itertools.combinations(recipes, 2))


def test_a_name_needs_letters():
    with pytest.raises(ArgumentError, match="name of a variant is '//'"):
        Variant("//")
