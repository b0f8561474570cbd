"""`linfnet demo`: train, attack and certify a small net, beside the paper's nearest-neighbour net; report it."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from linfnet.cli.console import console, results_table
from linfnet.cli.display import train_display
from linfnet.cli.evaluate import evaluate_with_progress, store_evaluation
from linfnet.cli.report import write_report
from linfnet.cli.train import pick_device
from linfnet.data import load
from linfnet.nn import LinfNet
from linfnet.recipes import load_recipe
from linfnet.theory import nearest_neighbour_net
from linfnet.train import new_run_path, start_run

# The recipe's own is among them; the others make the attack a curve.
EPSILONS = tuple(Fraction(k, 20) for k in range(1, 5))


@dataclass(frozen=True)
class Demo:
    """Train a net on hand-written digits, attack it, certify it, and compare it with the net of Theorem 1."""

    out: Path | None = None
    """The run folder, new or empty; by default runs/demo-TIME."""

    def run(self) -> int:
        """Print the table of both nets, the run folder, and where the report is."""
        device = pick_device("auto")
        recipe = load_recipe("digits")
        console.print("training a net on 1,437 hand-written digits …")
        folder = start_run(recipe, self.out or new_run_path("demo"), device, display=train_display)
        images = load(recipe.data.name, "train", device=device)
        test = load(recipe.data.name, "test", device=device)
        trained = evaluate_with_progress(LinfNet.load(folder.path, device=device), test, EPSILONS, 100)
        store_evaluation(folder.path, trained, f"{recipe.data.name}-test")
        neighbour_net = nearest_neighbour_net(images.pixels(), images.labels, len(images.info.classes))
        neighbour = evaluate_with_progress(neighbour_net, test, recipe.evaluation.eps, 100)
        store_evaluation(folder.path, neighbour, f"nearest-neighbour {recipe.data.name}-test", samples=False)
        rows = [("trained net", trained), ("Theorem 1", neighbour)]
        console.print(results_table(f"{len(test)} test images, accuracy in %", rows))
        console.print(f"run folder: {folder.path}")
        console.print(f"report, to open in a browser: {write_report((folder.path,))}")
        return 0
