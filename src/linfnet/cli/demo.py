"""`linfnet demo`: train, attack and certify a small net, and say in one sentence what was found."""

import shlex
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from linfnet.cli import inputs
from linfnet.cli.console import console, print_table, results_table
from linfnet.cli.evaluate import evaluate_with_progress, store_evaluation
from linfnet.cli.report import write_report
from linfnet.cli.train import TrainDisplay
from linfnet.data import load
from linfnet.distributed.device import choose_device
from linfnet.epsilon import format_epsilon
from linfnet.export import write_card
from linfnet.recipes import load_recipe
from linfnet.results import Result, add_evaluations
from linfnet.systems import load_model
from linfnet.theory import nearest_neighbour_net
from linfnet.train import StoppedError, fit, new_run_path

# The epsilon of the recipe and three more, so that the report has a curve of accuracies under attack.
EPSILONS = tuple(Fraction(k, 20) for k in range(1, 5))
COLUMNS = """\
eps        every pixel, a number from 0 to 1, may change by up to this much
clean      share of the test images that are classified correctly
PGD-100    … also after an attack that follows gradients, in 100 steps
certified  … and it is proven that no change of up to eps alters the class:
           by the margin of one forward pass, or by bounds through all layers
Theorem 1  the net of the paper's Theorem 1, built without training: it
           assigns the class of the nearest training image"""


@dataclass(frozen=True)
class Demo:
    """Train a net on hand-written digits, attack it, certify it, and compare it with the net of Theorem 1.

    Examples:
        linfnet demo
        linfnet demo --out runs/demo
    """

    out: inputs.Folder = None
    """The run folder, new or empty. Default: runs/demo-TIME."""

    def run(self) -> None:
        device = choose_device("auto")
        recipe = load_recipe("digits")
        path = self.out or new_run_path("demo")
        images, test = (load(recipe.data.name, split, device=device) for split in ("train", "test"))
        console.print(f"training a net on {len(images):,} hand-written digits …")
        try:
            fit(recipe, out=path, callbacks=[TrainDisplay()], device=device)
            net = load_model(path, device=device)
            trained = evaluate_with_progress(net, test, EPSILONS, 100, what="attacking and certifying the trained net")
            store_evaluation(path, trained, net)
            neighbour_net = nearest_neighbour_net(images.pixels(), images.labels, len(images.info.classes))
            what = "attacking and certifying the net of Theorem 1"
            neighbour = evaluate_with_progress(neighbour_net, test, recipe.evaluation.eps, 100, what=what).results
        except StoppedError as error:
            raise StoppedError(f"{error}; for the table and the report, then: {_next_commands(path)}") from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; for the table and the report: {_next_commands(path)}") from None
        add_evaluations(path, tuple(replace(result, net="nearest-neighbour") for result in neighbour))
        write_card(path, net)
        rows = [("trained net", result) for result in trained.results]
        rows += [("Theorem 1", result) for result in neighbour]
        print_table(results_table(f"{len(test)} test images, accuracy in %", rows))
        console.print(COLUMNS, style="dim")
        console.print()
        at_recipe = next(result for result in trained.results if result.eps == recipe.evaluation.eps[0])
        console.print(conclusion(at_recipe), style="bold", soft_wrap=False)
        console.print()
        report = write_report((path,))
        console.print(f"run folder: {path}")
        console.print(f"report, to open in a browser: {report}")
        console.print("next:")
        quoted = shlex.quote(str(path))
        for command, what in (
            (f"linfnet report {quoted} --open", "the results, with images and curves"),
            (f"linfnet certify {quoted} --limit 10 --out radii", "the radius of each image"),
            ("linfnet serve --open", "draw a digit, and see how far it is certified"),
            ("linfnet recipes", "train other nets"),
        ):
            console.print(f"  {command}  # {what}")


def _next_commands(folder: Path) -> str:
    path = shlex.quote(str(folder))
    return f"linfnet evaluate {path} && linfnet report {path}"


def conclusion(result: Result) -> str:
    """Return one sentence with the numbers of certified, broken and misread images.

    >>> result = Result("digits", "test", 360, Fraction(1, 10), 340 / 360, 309 / 360, {"margin": 308 / 360})
    >>> conclusion(result).split("; ")[0]
    '308 of 360 digits cannot be misread by any change of up to 0.1 per pixel'
    >>> conclusion(result).split("; ")[1]
    'the attack broke 31, 1 was neither broken nor proven, and 20 were misread without an attack.'
    """
    count, shares = result.count, (result.clean, result.attacked, result.best_certified)
    clean, attacked, certified = (round((share or 0) * count) for share in shares)
    undecided = attacked - certified
    return (
        f"{certified} of {count} digits cannot be misread by any change of up to {format_epsilon(result.eps)} per "
        f"pixel; the attack broke {clean - attacked}, {undecided} {'was' if undecided == 1 else 'were'} neither broken "
        f"nor proven, and {count - clean} were misread without an attack."
    )
