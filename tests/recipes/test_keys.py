"""The description of all keys of recipes."""

import tomllib

import pytest

from linfnet.losses import LOSSES
from linfnet.recipes import describe_keys, load_recipe, recipe_names, recipe_to_toml
from linfnet.systems import SYSTEMS


def test_every_key_is_described_and_has_a_type():
    keys = describe_keys()
    assert [key.name for key in keys if not key.description or not key.type] == []
    assert {key.of for key in keys} == {"", *LOSSES.names(), *SYSTEMS.names()} - {"linf", "sparse"}
    assert len({(key.name, key.of) for key in keys}) == len(keys)


@pytest.mark.parametrize("name", recipe_names())
def test_the_keys_of_a_recipe_are_those_of_its_file(name: str):
    recipe = load_recipe(name)
    keys = {key.name: key.default for key in describe_keys(recipe)}
    for section, table in tomllib.loads(recipe_to_toml(recipe)).items():
        for key, value in (table if isinstance(table, dict) else {"": table}).items():
            shown = keys[f"{section}.{key}" if key else section]
            assert tomllib.loads(f"value = {shown}")["value"] == value


def test_types_in_words():
    types = {key.name: (key.type, key.default) for key in describe_keys()}
    assert types["schedule.epochs"] == ("list of 3 integers", "[100, 1150, 50]")
    assert types["evaluation.eps"] == ("list of numbers", '["8/255"]')
    assert types["data.mode"] == ("grey or rgb", "")
    assert types["data.resize"] == ("list of 2 integers", "")
    assert types["run.graphs"] == ("true or false", "true")
