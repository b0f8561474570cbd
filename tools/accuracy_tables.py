"""Tables of accuracies, generated from records/."""

from collections.abc import Iterator

from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.recipes import load_recipe
from linfnet.results import Result, results_from_json
from tools import records
from tools.records import RunRecord, link, percent, published, read_record, table

# The recipes of the paper's table, in its order.
PAPER_ROWS = ("mnist-0.1", "mnist-0.3", "cifar10-2", "cifar10-8", "cifar10-16")
# The records in the table of all training runs, in order.
TABLE_RUNS = (
    "mnist-0.1",
    "mnist-0.1-snapped-seed-2",
    "mnist-0.3",
    "mnist-0.3-snapped",
    "mnist-0.3-snapped-seed-2",
    "mnist-0.3-snapped-seed-3",
    "cifar10-2-125-epochs-sortnet",
    "cifar10-2-200-epochs",
    "cifar10-8-125-epochs",
    "cifar10-8-125-epochs-seed-3",
    "cifar10-8-800-epochs",
    "cifar10-8-1300-epochs",
    "cifar10-16-125-epochs",
    "cifar10-16-200-epochs",
    "cifar10-8-2021-125-epochs",
    "cifar10-8-hybrid-125-epochs",
)
# The records in the table of docs/systems.md, and a description of each net.
SYSTEM_RUNS = {
    "cifar10-8-2021-125-epochs": "full size, as trained in 2021",
    "cifar10-8-hybrid-125-epochs": "full size",
    "mnist-0.1-hybrid-small": "3 distance layers of width 256, 20,000 images",
    "cifar10-8-hybrid-small": "3 distance layers of width 256, 10,000 images",
    "mnist-0.3-ibp": "small convolutional net",
    "cifar10-smoothing-0.25": "small convolutional net, σ = 0.25, 30,000 images",
    "cifar10-smoothing-1.0": "small convolutional net, σ = 1, 30,000 images",
}
# The rows of the table about the length of the first phase: a description, and one record for each seed.
FIRST_PHASE = (
    ("width 256", ("16-101-8-seed-0", "16-101-8-seed-1")),
    ("width 256, p snapped", ("16-101-8-snapped-seed-0", "16-101-8-snapped-seed-1")),
    ("width 256", ("62-55-8-seed-0", "62-55-8-seed-1")),
    ("width 256, `eps_train` complete after 16 epochs", ("62-55-8-eps-in-16",)),
    ("width 128, batches of 103", ("98-steps-16-101-8",)),
    ("width 128, batches of 103", ("98-steps-62-55-8",)),
)
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits", "fashion-mnist": "Fashion-MNIST"}


def subject(result: Result) -> str:
    """Return the data set and epsilon of a result, such as `CIFAR-10 at 8/255`."""
    return f"{DATA[result.data]} at {format_epsilon(result.eps)}"


def _accuracies(result: Result) -> list[str]:
    """Return the clean and attacked accuracy and the accuracies certified by margin and by interval bounds."""
    certified = [result.certified.get(name) for name in ("margin", "interval")]
    return [percent(share) for share in (result.clean, result.attacked, *certified)]


def results() -> str:
    """Return the table of training runs."""
    head = ["net", "epochs", "seconds, on", "clean", "PGD", "certified: margin", "interval", "paper", "record"]
    rows: list[list[str]] = []
    demo = read_record("demo")
    seconds = demo["command_seconds"]
    (digits,) = (
        result
        for result in results_from_json(demo["results"]).evaluations
        if format_epsilon(result.eps) == "0.1" and not result.net
    )
    epochs = "/".join(map(str, load_recipe("digits").schedule.epochs))
    cost = f"{seconds['cpu kernels']:.0f} ({seconds['reference']:.0f} without kernels), 2 CPU cores"
    rows.append([subject(digits), epochs, cost, *_accuracies(digits), "–", _link("demo")])
    small = read_record("mnist-small")
    accuracies = [percent(small["trained"][key]) for key in ("clean", "pgd", "certified_margin", "certified_interval")]
    cost = f"{small['train']['seconds']:.0f}, 2 CPU cores"
    epochs = str(small["train"]["epochs"])
    rows.append(["MNIST at 0.1, width 256", epochs, cost, *accuracies, "–", _link("mnist-small")])
    for name in TABLE_RUNS:
        run = RunRecord.read(name)
        what = f"{run.record['what'].replace(', p snapped', '')}{run.variant}"
        epochs = "/".join(map(str, run.record["epochs"]))
        cost = f"{run.record['seconds']:.0f}, {run.record['hardware'].removeprefix('NVIDIA ')}"
        rows.append([what, epochs, cost, *_accuracies(run.result), published(run.recipe, run.result), _link(name)])
    return table(head, rows)


def _link(name: str) -> str:
    return f"[record](records/{name}.json)"


def paper_rows() -> str:
    """Return a table with the best of our runs for each row of the paper's table, and the paper's figures."""
    best: dict[str, RunRecord] = {}
    for path in sorted(records.RECORDS.glob("*.json")):
        record = read_record(path.stem)
        if "recipe" not in record or "results" not in record or "seconds" not in record:
            continue  # not a training run
        run = RunRecord(path.stem, record)
        name, result = run.recipe.name, run.main_result
        if result is not None and name in PAPER_ROWS and result.eps == load_recipe(name).evaluation.eps[0]:
            other = best.get(name)
            if other is None or result.best_certified > other.result.best_certified:
                best[name] = run
    rows: list[list[str]] = []
    for name in PAPER_ROWS:
        run, paper = best[name], load_recipe(name).reported
        result, epochs = run.result, sum(run.record["epochs"])
        ours = [percent(share) for share in (result.clean, result.attacked, result.best_certified)]
        theirs = [f"{share:.2f}" for share in (paper.clean, paper.pgd, paper.certified)]
        cost = f"[{epochs}](records/{run.name}.json)"
        rows.append([subject(result), *ours, cost, *theirs, paper.cost.removesuffix(" epochs")])
    head = ["data, ε", "clean", "PGD", "certified", "epochs"]
    return table([*head, "paper: clean", "PGD", "certified", "epochs"], rows)


def packaged_net() -> str:
    """Return the accuracies of the net `mnist-small` on all test images."""
    record, attacks = read_record("pretrained-mnist"), read_record("attacks")["rows"]
    rows: list[list[str]] = []
    for row in attacks:
        certified = record["certified"][row["eps"]]
        left = row["left_by_each_attack_alone"]
        attacked = [left["pgd-100, the paper's"] / 10_000, left["linfnet attack: smoothed"] / 10_000]
        shares = [record["clean"], *attacked, certified["margin"], certified["interval"]]
        rows.append([format_epsilon(parse_epsilon(row["eps"])), *map(percent, shares)])
    head = ["ε", "clean", "PGD-100", "smoothed PGD", "certified by margin", "by interval bounds"]
    return table(head, rows) + f"\n({link('pretrained-mnist.json')}, {link('attacks.json')})\n"


def systems() -> str:
    """Return a table with one row for each run and epsilon, for docs/systems.md."""
    head = [
        "system",
        "data, ε",
        "net",
        "epochs",
        "clean",
        "attacked",
        "attack",
        "certified",
        "proof, s/image",
        "record",
    ]
    rows: list[list[str]] = []
    for name, net in SYSTEM_RUNS.items():
        run = RunRecord.read(name)
        for result in _evaluations(run):
            seconds = f"{result.certify_seconds[_preferred(result)]:.2g}"
            epochs = "/".join(str(part) for part in run.record["epochs"] if part)
            figures = [percent(result.clean), percent(result.attacked), str(result.attack)]
            certified = percent(result.certified[_preferred(result)])
            net_and_data = [f"`{run.recipe.system_name}`", subject(result), net, epochs]
            rows.append([*net_and_data, *figures, certified, seconds, link(f"{name}.json")])
    return table(head, rows)


def _preferred(result: Result) -> str:
    """Return the name of the certificate to show: the margin if the net has it, otherwise its only certificate."""
    return "margin" if "margin" in result.certified else result.best


def _evaluations(run: RunRecord) -> Iterator[Result]:
    """Yield the evaluations at the epsilons of the recipe."""
    for result in run.results.evaluations:
        if result.eps in run.recipe.evaluation.eps and (result.limit in (None, 500)):
            yield result


def short_runs() -> str:
    """Return the table of three methods after 125 epochs on CIFAR-10 at 8/255."""
    names = {
        "cifar10-8-125-epochs": "`linf`, the paper's objective",
        "cifar10-8-2021-125-epochs": "`linf`, as trained in 2021",
        "cifar10-8-hybrid-125-epochs": "`hybrid`",
    }
    rows: list[list[str]] = []
    for name, what in names.items():
        run = RunRecord.read(name)
        training, result = run.results.training, run.result
        train = training.train.certified[result.eps] if training and training.train else None
        certified, reported = result.certified[_preferred(result)], run.recipe.reported
        paper = [f"{reported.clean:.2f}", f"{reported.certified:.2f}", reported.cost]
        rows.append([what, percent(result.clean), percent(certified), percent(train), *paper])
    head = ["run of 125 epochs", "clean", "certified", "certified, training images"]
    return table([*head, "paper, clean", "paper, certified", "paper, epochs"], rows)


def first_phase() -> str:
    """Return the table of small nets with an MLP, trained with a short and a long first phase."""
    rows: list[list[str]] = []
    for what, names in FIRST_PHASE:
        runs = [RunRecord.read(f"cifar10-8-hybrid-small-{name}") for name in names]
        phases = [run.epochs()[: run.record["epochs"][0]] for run in runs]
        (steps,) = {phase[-1]["step"] for phase in phases}
        losses = ", ".join(f"{phase[-1]['loss']:.2f}" for phase in phases)
        results = [run.result for run in runs]
        shares = [[result.clean for result in results], [result.attacked for result in results]]
        shares.append([result.best_certified for result in results])
        figures = [", ".join(map(percent, column)) for column in shares]
        rows.append([f"{len(phases[0])} epochs, {what}", str(steps), losses, *figures])
    theirs = read_record("cifar10-8-hybrid-small-authors")
    scripts = (
        f"16 epochs, width 256, trained by the authors' scripts of 2021 ({link('cifar10-8-hybrid-small-authors.json')})"
    )
    rows.append([scripts, "320", "–", percent(theirs["clean"]), "–", percent(theirs["certified"])])
    return table(["first phase of 125 epochs", "steps", "loss at its end", "clean", "PGD-100", "certified"], rows)


def ablation() -> str:
    """Return the table of the ablation on small nets: median and range over the seeds."""
    rows: list[list[str]] = []
    for cell in read_record("ablation-small")["cells"]:
        spreads = [cell["spread"][name] for name in ("clean", "certified_margin", "certified_train")]
        figures = [
            f"{percent(spread['median'])} ({100 * spread['lowest']:.1f}–{100 * spread['highest']:.1f})"
            for spread in spreads
        ]
        paper = f"{cell['paper']['clean']:.2f} / {cell['paper']['certified']:.2f}"
        rows.append([cell["label"], *figures, paper])
    return table(["row", "clean", "certified at 8/255", "certified, train", "paper, full size"], rows)
