"""Recipes are data: one TOML file per published row, naming only what differs from the defaults."""

from linfnet.recipes.recipe import Recipe as Recipe
from linfnet.recipes.toml import load_recipe as load_recipe
from linfnet.recipes.toml import options_from_mapping as options_from_mapping
from linfnet.recipes.toml import recipe_from_toml as recipe_from_toml
from linfnet.recipes.toml import recipe_names as recipe_names
from linfnet.recipes.toml import recipe_to_toml as recipe_to_toml
