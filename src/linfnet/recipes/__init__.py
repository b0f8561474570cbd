"""Recipes: one TOML file for each published net. A file has only the keys that differ from the defaults."""

from linfnet.recipes.io import Changes as Changes
from linfnet.recipes.io import change_recipe as change_recipe
from linfnet.recipes.io import load_recipe as load_recipe
from linfnet.recipes.io import missing_sections as missing_sections
from linfnet.recipes.io import options_from_mapping as options_from_mapping
from linfnet.recipes.io import recipe_from_toml as recipe_from_toml
from linfnet.recipes.io import recipe_names as recipe_names
from linfnet.recipes.io import recipe_to_toml as recipe_to_toml
from linfnet.recipes.keys import Key as Key
from linfnet.recipes.keys import describe_keys as describe_keys
from linfnet.recipes.recipe import Data as Data
from linfnet.recipes.recipe import Recipe as Recipe
