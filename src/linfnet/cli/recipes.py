"""`linfnet recipes`: the recipes of the package, and all keys of one recipe."""

import shlex
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.table import Table
from tyro.conf import arg

from linfnet.cli.console import console, is_narrow, print_table
from linfnet.cli.inputs import Changes
from linfnet.epsilon import format_epsilon
from linfnet.recipes import Recipe, describe_keys, load_recipe, recipe_names


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or show all keys of one: its values, which differ from the defaults, and what they mean.

    Examples:
        linfnet recipes
        linfnet recipes mnist-0.1
        linfnet recipes digits --set model.width=256
    """

    recipe: Annotated[tyro.conf.Positional[str | None], arg(metavar="RECIPE")] = None
    """The name of a recipe or a TOML file. Without it, all recipes are listed."""
    set: Changes = ()
    """Show the recipe with these changes, as in `linfnet train`."""

    def run(self) -> None:
        """Print the list, or the keys."""
        if self.recipe is None:
            print_table(recipes_table([load_recipe(name) for name in recipe_names()]))
            console.print("all keys of a recipe: linfnet recipes NAME; train it: linfnet train NAME")
            return
        recipe = load_recipe(self.recipe, tuple(change for changes in self.set for change in changes))
        console.print(f"{recipe.name}: {recipe.title}", style="bold", soft_wrap=False)
        if text := reported(recipe):
            console.print(text, soft_wrap=False)
        print_table(keys_table(recipe))
        console.print("* differs from the default")
        console.print(f"change a key: linfnet train {shlex.quote(self.recipe)} --set KEY=VALUE")


def whose(recipe: Recipe) -> str:
    """Return who measured the accuracies that a recipe reports: the paper, or this project."""
    source = recipe.reported.source
    return "" if not source else "ours" if source.startswith("records/") else "paper"


def reported(recipe: Recipe) -> str:
    """Return a sentence with the accuracies that a recipe reports and who measured them, or an empty text."""
    found = recipe.reported
    named = {"clean": found.clean, "PGD": found.pgd, "certified": found.certified}
    figures = ", ".join(f"{name} {value:.2f}" for name, value in named.items() if value)
    if not figures:
        return ""
    source = f"measured by this project ({found.source})" if whose(recipe) == "ours" else f"reported in {found.source}"
    eps = format_epsilon(recipe.evaluation.eps[0])
    return f"accuracy in % at eps = {eps}, {source}: {figures}" + (f", after {found.cost}" if found.cost else "")


def recipes_table(recipes: list[Recipe]) -> Table:
    """Return a table with one line for each recipe; it fits into 80 columns, and without two of its columns into 60."""
    table = Table(title="recipes; accuracy in %", title_justify="left", box=None, padding=(0, 1, 0, 0))
    narrow = is_narrow()
    for name in ("name", "eps") if narrow else ("name", "data", "eps", "system"):
        table.add_column(name, no_wrap=True)
    for name in ("clean", "certified"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("whose", no_wrap=True)
    for recipe in recipes:
        found, eps = recipe.reported, format_epsilon(recipe.evaluation.eps[0])
        numbers = [f"{value:.2f}" if value else "" for value in (found.clean, found.certified)]
        words = (recipe.name, eps) if narrow else (recipe.name, recipe.data.name, eps, recipe.system_name)
        table.add_row(*words, *numbers, whose(recipe))
    table.caption = "paper: published figures of the authors; ours: measured by this project, in records/"
    table.caption += "\ndata and system are shown in 80 columns" if narrow else ""
    table.caption_justify = "left"
    return table


def keys_table(recipe: Recipe) -> Table:
    """Return a table with the value and the meaning of each key; `*` marks values that differ from the default."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("meaning", overflow="fold")
    system = {"name": recipe.system_name} if recipe.system else {}
    default_recipe = Recipe(loss=type(recipe.loss)(), system=system)
    defaults = {key.name: key.default for key in describe_keys(default_recipe)}
    section = None
    for key in describe_keys(recipe):
        name, value, meaning = key.name, key.default, key.description
        head = name.partition(".")[0]
        if head in ("name", "title", "reported"):
            continue
        if section not in (None, head):
            table.add_row()
        section, default = head, defaults.get(name, "")
        changed = value != default
        table.add_row(
            "*" if changed else "", name, value, meaning + (f" Default: {default}." if changed and default else "")
        )
    return table
