"""The tables of every evaluation in records/, one for each data set."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.recipes import Recipe, load_recipe, recipe_from_toml
from linfnet.results import PGD_100, results_from_json
from linfnet.systems import system_of
from linfnet.systems.ibp import Ibp
from linfnet.systems.smoothing import Smoothing
from tools import records
from tools.accuracy_tables import DATA
from tools.records import percent, table

SYSTEMS = {
    "linf": "ℓ∞-distance net",
    "conv-stem": "ℓ∞-distance net with convolutions",
    "hybrid": "ℓ∞-distance net + MLP",
    "ibp": "interval bound propagation",
    "crown-ibp": "CROWN-IBP",
    "crown-lbp": "CROWN-LBP",
    "cap": "CAP",
    "colt": "COLT",
    "smoothing": "randomised smoothing",
    "smoothadv": "randomised smoothing, SmoothAdv",
    "consistency": "randomised smoothing, consistency",
    "sortnet": "SortNet",
    "sortnet-mlp": "SortNet + MLP",
}
HEAD = ["net", "epochs", "ε", "clean", "PGD", "certified", "paper", "record"]


@dataclass(frozen=True)
class Row:
    """One evaluation of a record; accuracies in [0, 1], None where not measured."""

    data: str
    net: str
    epochs: str
    epsilon: str
    clean: float
    attacked: float | None
    certified: float
    paper: float | None = None

    def cells(self) -> list[str]:
        """Return the cells of the table of all evaluations, without the link to the record."""
        shares = (self.clean, self.attacked, self.certified, self.paper)
        return [self.net, self.epochs, self.epsilon, *map(percent, shares)]


def evaluations() -> str:
    """Return a heading and a table of all evaluations for each data set."""
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for path in sorted(records.RECORDS.glob("*.json")):
        for row in accuracies(json.loads(path.read_text(encoding="utf-8"))):
            rows[row.data].append([*row.cells(), f"[record](records/{path.name})"])
    titles = {data: title[0].upper() + title[1:] for data, title in DATA.items()}
    parts = [f"### {title}\n\n{table(HEAD, rows[data])}" for data, title in titles.items() if rows[data]]
    return "\n" + "\n".join(parts) + "\n"


def accuracies(record: Any) -> Iterator[Row]:
    """Yield a row for each evaluation in a record."""
    if not isinstance(record, dict):
        return
    recipe = recipe_from_toml(record["recipe"], "recipe", "recipe") if isinstance(record.get("recipe"), str) else None
    published = recipe.reported if recipe and recipe.reported.source == "the paper" else None
    # The published row belongs to the epsilon of the packaged recipe; the recipe of the run may have a different one.
    target = load_recipe(recipe.name).evaluation.eps[0] if recipe and published else None
    net, epochs = describe(recipe or load_recipe("digits"), record)
    for result in results_from_json(record.get("results") or {}).evaluations:
        epsilon = format_epsilon(result.eps)
        epsilon += f", first {result.limit} images" if result.limit else ""
        epsilon += f", {result.attack}" if result.attack != PGD_100 else ""
        paper = published.certified / 100 if published and result.eps == target else None
        of = (result.net, "–") if result.net else (net, epochs)
        yield Row(result.data, *of, epsilon, result.clean, result.attacked, result.best_certified, paper)
    certified = record.get("certified")
    for epsilon, row in certified.items() if isinstance(certified, dict) else ():
        if recipe and isinstance(row, dict) and {"margin", "interval"} <= row.keys():
            best, epsilon = max(row["margin"], row["interval"]), format_epsilon(parse_epsilon(epsilon))
            yield Row(recipe.data.name, f"{net}, `mnist-small`", epochs, epsilon, record["clean"], None, best)


def describe(recipe: Recipe, record: dict[str, Any]) -> tuple[str, str]:
    """Return the net and the epochs of a run in words."""
    net, system = SYSTEMS.get(recipe.system_name, recipe.system_name), system_of(recipe)
    if recipe.system_name in ("linf", "conv-stem", "hybrid", "sortnet", "sortnet-mlp"):
        net += f", {recipe.model.depth} layers of width {recipe.model.width}"
    elif isinstance(system, Smoothing):
        net += f", σ = {system.sigma:g}"
        net += f", pixels in [{system.low:g}, {system.high:g}]" if (system.low, system.high) != (0, 1) else ""
        net += f", {system.pool}x{system.pool} blocks" if system.pool > 1 else ""
    elif "architecture" in vars(system):
        net += f" ({2021 if system.ramp == 'smooth' else 2018})" if type(system) is Ibp else ""
        net += f", {vars(system)['architecture']}"
    net += ", training of 2021" if recipe.system_name == "linf" and recipe.name.endswith("-2021") else ""
    net += f", {recipe.data.limit:,} images" if recipe.data.limit else ""
    net += ", p snapped" if recipe.schedule.snap_p else ""
    net += f", seed {record['seed']}" if "seed" in record else ""
    return net, "/".join(str(part) for part in recipe.schedule.epochs if part)
