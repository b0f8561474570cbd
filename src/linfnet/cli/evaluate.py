"""`linfnet evaluate`: clean, PGD and certified accuracy of a run or a model folder."""

import hashlib
import os
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from linfnet.cli.certify import run_of
from linfnet.cli.console import console, heard, results_table
from linfnet.cli.train import pick_device
from linfnet.data import ImageSet, load
from linfnet.distributed.evaluation import evaluate_together, own_images
from linfnet.distributed.group import ALONE, Ranks, joined, launched, own_device
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.evaluation import Evaluation, result_key, write_broken, write_samples
from linfnet.export import write_card
from linfnet.nn import Classifier
from linfnet.systems import load_model
from linfnet.train import add_results, read_results

# Letters that epsilons may take in the name of a file: file systems have room for 255 in all.
LONGEST = 100


def evaluate_with_progress(
    net: Classifier, images: ImageSet, epsilons: tuple[Fraction, ...], steps: int, ranks: Ranks = ALONE
) -> Evaluation:
    """Evaluate, with a progress bar over the samples of all epsilons (the first process's, where there are several)."""
    columns = (TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(own_images(images, ranks)) * len(epsilons))
        return evaluate_together(net, images, epsilons, ranks, steps=steps, advance=lambda n: progress.advance(task, n))


def load_for(net: Classifier, model: Path, name: str, split: str) -> ImageSet:
    """A split of a data set, or an error if its images are of another shape than the model's."""
    images = load(name, split)
    if images.info.image_shape != net.image_shape:
        raise LinfnetError(
            f"{model} is a net for images of shape {net.image_shape}; {name} has {images.info.image_shape}"
        )
    return images


def store_evaluation(
    folder: Path, evaluation: Evaluation, what: str, *, limit: int | None = None, samples: bool = True
) -> None:
    """Add to results.json under a key of its own for each epsilon, and write the samples beside it.

    A run's model card tells the new results, too; elsewhere README.md may be the user's own.
    """
    entries: dict[str, Any] = {}
    for at in evaluation.at:
        entries[result_key(what, at.epsilon, limit=limit, steps=evaluation.steps)] = {
            "samples": len(evaluation.labels),
            "clean": evaluation.clean,
            **at.summary(),
            "certified_and_broken": len(at.violations()),
            "arithmetic": evaluation.arithmetic,
            "confidence": evaluation.confidence,
            "pgd_steps": evaluation.steps,
            "certify_seconds_per_image": at.cost(),
            "seconds": round(at.seconds, 2),
        }
    add_results(folder, entries)
    if samples and evaluation.at:
        name = result_key(what, evaluation.at[0].epsilon, limit=limit, steps=evaluation.steps).split(" eps=")[0]
        epsilons = "_".join(format_epsilon(at.epsilon).replace("/", "-") for at in evaluation.at)
        if len(epsilons) > LONGEST:
            first, digest = epsilons[:LONGEST].rpartition("_")[0], hashlib.sha256(epsilons.encode()).hexdigest()[:8]
            epsilons = f"{first}_and-more-{digest}"
        stem = f"samples-{name}-eps-{epsilons}"
        write_samples(evaluation, folder / f"{stem}.csv")
        write_broken(evaluation, folder / f"{stem}.broken.safetensors")
    if (folder / "recipe.toml").is_file():
        write_card(folder)


@dataclass(frozen=True)
class Evaluate:
    """Measure clean, attacked and certified accuracy at p = infinity; results go into the folder."""

    model: tyro.conf.Positional[Path]
    """A finished run, or any folder with model.safetensors and config.json."""
    eps: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Perturbations in pixel units, as 8/255 or 0.1; by default those of the run's recipe."""
    split: Literal["test", "train"] = "test"
    """Which images."""
    limit: int | None = None
    """Only the first so many images."""
    steps: int | None = None
    """Steps of the PGD attack; by default those of the run's recipe, or 100."""
    data: str | None = None
    """Another data set than the run's own."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Evaluate, print the table, and add to results.json and a CSV of all samples."""
        asked = tuple(parse_epsilon(text, "--eps") for group in self.eps for text in group)
        for name, value in (("--limit", self.limit), ("--steps", self.steps)):
            if value is not None:
                at_least(name, value, 1)
        device = pick_device(own_device(self.device) if launched() else self.device)
        run = run_of(self.model)
        recipe = run.recipe if run else None
        name = self.data or (recipe.data.name if recipe else None)
        epsilons = asked or (recipe.evaluation.eps if recipe else ())
        if name is None or not epsilons:
            raise ArgumentError(f"{self.model} has no recipe.toml: give --data and --eps")
        read_results(self.model)  # an unreadable file is told before the work, not after it
        if not os.access(self.model, os.W_OK):
            raise LinfnetError(f"{self.model} may not be written: the results would have no place")
        net = load_model(self.model, device=device)
        images = load_for(net, self.model, name, self.split).first(self.limit).to(device)
        steps = self.steps or (recipe.evaluation.pgd_steps if recipe else 100)
        with joined(device) as ranks, heard(ranks):
            evaluation = evaluate_with_progress(net, images, epsilons, steps, ranks)
            if ranks.first:
                store_evaluation(self.model, evaluation, f"{name}-{self.split}", limit=self.limit)
            title = f"{len(images)} {self.split} images of {name}"
            console.print(results_table(title, [(self.model.name, evaluation)]))
            console.print(f"results: {self.model / 'results.json'}")
        return 0
