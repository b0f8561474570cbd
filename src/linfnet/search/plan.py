"""The trials of a search: every variant with every seed, checked before the first one starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from linfnet.data import load_split
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_table, write_table
from linfnet.recipes import Recipe, change_recipe, load_recipe, recipe_to_toml
from linfnet.recipes.io import recipe_from_toml, split_change
from linfnet.reproduce.studies import differing_sections
from linfnet.search.variants import Variant
from linfnet.systems import SYSTEMS, check_changes, system_of
from linfnet.train import RunFolder

# The file in the folder of a search that describes it.
PLAN_FILE = "search.json"
# By default, this share of the training images is held out.
HELD_OUT_SHARE = 10


@dataclass(frozen=True)
class Trial:
    """A run of one variant with one seed."""

    variant: Variant
    recipe: Recipe
    path: Path

    @property
    def name(self) -> str:
        """The variant and the seed."""
        return f"{self.variant.name}, seed {self.recipe.run.seed}"


@dataclass(frozen=True)
class Plan:
    """The settings that all trials of a search have in common, and its variants."""

    recipe: Recipe
    variants: tuple[Variant, ...]
    """All variants in the folder, in the order in which they were added."""
    chosen: tuple[Variant, ...]
    """The variants to train."""
    seeds: tuple[int, ...]
    """The seeds of the trials to train."""
    out: Path

    def trials(self) -> list[Trial]:
        """Return the trials to train, ordered by seed, so that each variant has its first result early."""
        return [self.trial(variant, seed) for seed in self.seeds for variant in self.chosen]

    def trial(self, variant: Variant, seed: int) -> Trial:
        """Return the trial of a variant with a seed."""
        recipe = varied(self.recipe, variant)
        recipe = replace(recipe, run=replace(recipe.run, seed=seed))
        return Trial(variant, recipe, self.out / variant.folder / f"seed-{seed}")

    def found(self) -> list[Trial]:
        """Return the trials of all variants that have a folder."""
        trials: list[Trial] = []
        for variant in self.variants:
            names = (path.parent.name for path in (self.out / variant.folder).glob("seed-*/recipe.toml"))
            seeds = sorted(int(name.removeprefix("seed-")) for name in names if name[5:].isdecimal())
            trials += [self.trial(variant, seed) for seed in seeds]
        return trials

    def write(self) -> None:
        """Write the recipe and the variants, so that a later search in the same folder can be compared with them."""
        variants = {variant.name: list(variant.changes) for variant in self.variants}
        write_table(self.out / PLAN_FILE, {"recipe": recipe_to_toml(self.recipe), "variants": variants})


def base_recipe(recipe: Recipe | str | Path, changes: Sequence[str], hold_out: int | None) -> Recipe:
    """Return the recipe with the changes of all trials; a trial is tested only at its end unless a change says else."""
    before = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    after = change_recipe(before, [*changes])
    check_changes(before, after)
    if not any(split_change(change)[0] in ("test_every", "run.test_every") for change in changes):
        after = replace(after, run=replace(after.run, test_every=0))
    if not SYSTEMS[after.system_name].net_type.cheap:
        raise ArgumentError(f"system.name is {after.system_name!r}; expected a system whose certificates are cheap")
    count = hold_out if hold_out is not None else after.data.hold_out
    images = load_split(after.data, "train")
    count = len(images) // HELD_OUT_SHARE if count is None else count
    images.hold_out(count)  # raises an error if there are not enough images
    return replace(after, data=replace(after.data, hold_out=count), run=replace(after.run, seed=0))


def varied(recipe: Recipe, variant: Variant) -> Recipe:
    """Return the recipe of a variant; raise an error if its results could not be compared with those of the recipe."""
    try:
        changed = change_recipe(recipe, [*variant.changes])
        check_changes(recipe, changed)
        system_of(changed)  # raises an error for unknown keys of [system]
    except LinfnetError as error:
        raise ArgumentError(f"variant {variant.name!r}: {error}") from None
    for key in ("name", "path", "resize", "mode", "split_seed", "hold_out"):
        if getattr(changed.data, key) != getattr(recipe.data, key):
            raise ArgumentError(f"variant {variant.name!r} changes data.{key}; expected the same images in all trials")
    if changed.evaluation.eps[0] != recipe.evaluation.eps[0]:
        raise ArgumentError(f"variant {variant.name!r} changes evaluation.eps; expected the same in all trials")
    if changed.run.seed != recipe.run.seed:
        raise ArgumentError(f"variant {variant.name!r} changes run.seed; expected seeds for all variants: --seeds")
    return changed


def make_plan(recipe: Recipe, variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> Plan:
    """Return the plan of a search; raise an error if it is not valid or if the folder contains another search.

    A later search in the same folder with the same settings adds its variants to those in the folder.
    """
    if not variants:
        raise ArgumentError("there are no variants; expected at least one: --vary, --variant or --variants")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise ArgumentError(f"the seeds are {list(seeds)}; expected different whole numbers of at least 0")
    known = {variant.name: variant for variant in _stored(recipe, out)}
    for variant in variants:
        other = known.setdefault(variant.name, variant)
        if other != variant:
            changes = " ".join(other.changes) or "no changes"
            raise ArgumentError(f"there is another variant {variant.name!r}, with {changes}; choose another name")
    folders = [variant.folder for variant in known.values()]
    for variant in known.values():
        if folders.count(variant.folder) > 1:
            raise ArgumentError(f"two variants have the folder {variant.folder!r}; choose names that differ more")
    plan = Plan(recipe, tuple(known.values()), tuple(variants), tuple(seeds), out)
    for trial in [*plan.trials(), *plan.found()]:
        check_trial(trial)
    return plan


def _stored(recipe: Recipe, out: Path) -> list[Variant]:
    """Return the variants of the search in a folder; raise an error if it has another recipe."""
    file = out / PLAN_FILE
    if not file.exists():
        # A search that was killed while it wrote its plan leaves a temporary file.
        if out.is_dir() and not all(entry.match(".*.tmp") for entry in out.iterdir()):
            raise LinfnetError(f"{out} contains files, but no search; choose another --out")
        return []
    table = read_table(file)
    found: Any = table.get("variants")
    variants = cast(dict[str, Any], found if isinstance(found, dict) else {"": None})
    if not all(isinstance(changes, list) for changes in variants.values()):
        raise LinfnetError(f"{file} is not the plan of a search; choose another --out")
    stored = recipe_from_toml(str(table.get("recipe")), str(file), recipe.name)
    for section in differing_sections(stored, recipe):
        raise LinfnetError(f"{out} contains a search with other settings in [{section}]; choose another --out")
    return [Variant(name, tuple(map(str, changes))) for name, changes in variants.items()]


def check_trial(trial: Trial) -> None:
    """Raise an error if the folder of a trial contains a run of another recipe."""
    if (trial.path / "recipe.toml").is_file():
        stored = RunFolder.open(trial.path).recipe
        if trial.recipe.data.path is not None:  # the run has also stored the name and a digest of its data
            data = replace(stored.data, name=trial.recipe.data.name, digest=trial.recipe.data.digest)
            stored = replace(stored, data=data)
        for section in differing_sections(stored, trial.recipe):
            raise LinfnetError(f"{trial.path} contains a run with other settings in [{section}]; choose another --out")
