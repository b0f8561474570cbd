"""Tables of all systems beside the paper's figures, generated from records/."""

from fractions import Fraction

from linfnet.epsilon import format_epsilon
from linfnet.recipes import Recipe, load_recipe
from linfnet.reproduce import table1_with
from linfnet.results import Result
from tools import records
from tools.accuracy_tables import DATA
from tools.records import RunRecord, link, percent, read_record, table


def table1_systems() -> str:
    """Return the paper's Table 1 with the best of our runs of each recipe, where there is one."""
    runs = _best_runs()
    rows: list[list[str]] = []
    for cell in table1_with(["all"]).cells:
        recipe = load_recipe(cell.recipe)
        paper = ["–" if share is None else f"{share:.2f}" for share in (cell.paper.clean, cell.paper.pgd)]
        row = [_subject(recipe), f"`{cell.recipe}`", *paper, f"{cell.paper.certified:.2f}"]
        if cell.recipe in runs:
            run, result = runs[cell.recipe]
            shares = _shares(result)
            cost = [f"{sum(run.record['epochs'])}", f"{run.record['seconds']:.0f}", _proof(result)]
            rows.append([*row, *shares, *cost, link(f"{run.name}.json")])
        else:
            rows.append([*row, *["–"] * 7])
    head = ["data, ε", "recipe", "paper: clean", "PGD", "certified", "ours: clean", "PGD", "certified"]
    return table([*head, "epochs", "training, s", "proof, s/image", "record"], rows)


def table1_small() -> str:
    """Return the outcome of `linfnet reproduce table1 --systems all --small`, the median over the seeds of each row."""
    record = read_record("table1-small")
    rows: list[list[str]] = []
    for cell in record["cells"]:
        recipe, found = load_recipe(cell["recipe"]), {name: each["median"] for name, each in cell["spread"].items()}
        shares = [percent(found.get(name)) for name in ("clean", "pgd", "certified")]
        cost = [f"{found['seconds']:.0f}", f"{found['certify_seconds']:.1g}"] if found else ["–", "–"]
        quoted = f"{cell['paper']['certified']:.2f}"
        rows.append([_subject(recipe), f"`{cell['recipe']}`", *shares, *cost, quoted])
    head = ["data, ε", "recipe", "clean", f"PGD-{record['pgd_steps']}", "certified", "training, s", "proof, s/image"]
    return table([*head, "paper: certified"], rows)


def _subject(recipe: Recipe) -> str:
    return f"{DATA[recipe.data.name]}, {format_epsilon(recipe.evaluation.eps[0])}"


def small_systems() -> str:
    """Return a table of the runs of the recipes for a CPU, MNIST at 0.1; proofs that were timed on a GPU name it."""
    rows: list[list[str]] = []
    for path in sorted(records.RECORDS.glob("mnist-cpu-*.json")):
        run = RunRecord.read(path.stem)
        result = _result_at(run, run.recipe.evaluation.eps[0]) or run.result
        images = f"{run.recipe.data.limit or 60_000:,}"
        shares = _shares(result)
        epochs = "/".join(map(str, run.record["epochs"]))
        # Training chose the CPU; `linfnet evaluate` takes the GPU of the machine if there is one.
        gpu = run.record["environment"]["gpu"]
        cost = [f"{run.record['seconds']:.0f}", _proof(result) + (f" ({gpu.removeprefix('NVIDIA ')})" if gpu else "")]
        rows.append([f"`{run.recipe.name}`", images, epochs, *shares, *cost, link(f"{path.name}")])
    if not rows:
        return "No run has been recorded yet.\n"
    head = ["recipe", "training images", "epochs", "clean", "PGD-100", "certified", "training, s", "proof, s/image"]
    return table([*head, "record"], rows)


def _shares(result: Result) -> list[str]:
    """Return clean, attacked and certified accuracy, and the number of test images if they are not all."""
    images = "" if result.limit is None else f" ({result.limit} images)"
    shares = [percent(share) for share in (result.clean, result.attacked, result.best_certified)]
    return [*shares[:2], shares[2] + images]


def _proof(result: Result) -> str:
    return f"{result.certify_seconds[result.best]:.1g}" if result.best in result.certify_seconds else "–"


def _best_runs() -> dict[str, tuple[RunRecord, Result]]:
    """Return for each recipe our run with the best certified accuracy at the epsilon of the recipe."""
    best: dict[str, tuple[RunRecord, Result]] = {}
    wanted = {cell.recipe: load_recipe(cell.recipe).evaluation.eps[0] for cell in table1_with(["all"]).cells}
    for path in sorted(records.RECORDS.glob("*.json")):
        record = read_record(path.stem)
        if "recipe" not in record or "results" not in record or "seconds" not in record:
            continue  # not a training run
        run = RunRecord(path.stem, record)
        name = run.recipe.name
        result = _result_at(run, wanted[name]) if name in wanted else None
        if result is not None and (name not in best or result.best_certified > best[name][1].best_certified):
            best[name] = run, result
    return best


def _result_at(run: RunRecord, eps: Fraction) -> Result | None:
    """Return the evaluation at an epsilon: of all test images by PGD-100 if there is one, otherwise the first one."""
    found = [result for result in run.results.evaluations if result.eps == eps and result.split == "test"]
    if run.main_result is not None and run.main_result in found:
        return run.main_result
    return found[0] if found else None
