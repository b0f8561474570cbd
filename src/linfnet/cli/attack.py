"""`linfnet attack`: the sandwich certified <= robust <= clean, from every attack there is."""

import csv
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from rich.table import Table

from linfnet.attacks import ATTACKS, Attacked, attack_all, check_sandwich, known_attacks, parse_exponents
from linfnet.attacks import Attack as AttackFunction
from linfnet.certificates import Certification, certify_images
from linfnet.cli.certify import BATCH, Subject, find_subject, run_of
from linfnet.cli.console import console, percent
from linfnet.cli.train import pick_device
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, at_least
from linfnet.files import make_folder, replacing
from linfnet.nn import Classifier
from linfnet.nn.model_path import find_model
from linfnet.systems import load_model


@dataclass(frozen=True)
class Attack:
    """Try to break a net with every attack, and hold the result against what is proven."""

    model: tyro.conf.Positional[Path]
    """A finished run, any folder with model.safetensors and config.json, mnist-small, or hf://user/name."""
    data: str | None = None
    """A data set, by default the run's own; or a folder or .npy array of images (their predictions are attacked)."""
    eps: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """Perturbations in pixel units, as 8/255 or 0.1; by default those of the run's recipe."""
    attacks: tuple[str, ...] = ("pgd", "best-pgd", "smoothed", "square")
    """Which attacks, in turn: pgd, best-pgd, smoothed, square, autoattack (with the extra `autoattack`)."""
    p: str = "16,64"
    """Exponents whose slopes the smoothed attack follows."""
    steps: int = 100
    """Steps of the gradient attacks."""
    restarts: int = 2
    """Starts of best-pgd and smoothed."""
    queries: int = 1000
    """Queries of the Square attack."""
    split: Literal["test", "train"] = "test"
    """Which images of a data set."""
    limit: int | None = None
    """Only the first so many images."""
    seed: int = 0
    """Seed of all random choices."""
    out: Path | None = None
    """A folder for attacked.csv and, for each epsilon, the attacked images as .npy."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Print the table; a certified sample that was broken is an error that names it."""
        asked = tuple(parse_epsilon(text, "--eps") for group in self.eps for text in group)
        at_least("--seed", self.seed, 0)
        chosen = self._attacks()
        device = pick_device(self.device)
        model = find_model(self.model)
        run = run_of(model)
        data = self.data or (run.recipe.data.name if run else None)
        epsilons = tuple(sorted(asked or (run.recipe.evaluation.eps if run else ())))
        if data is None or not epsilons:
            raise ArgumentError(f"{self.model} has no recipe.toml: give --data and --eps")
        net = load_model(model, device=device)
        subject = find_subject(data, self.split, self.limit, net, device)
        found = certify_images(net, subject.batches(BATCH), epsilons)
        results = self._attack(net, subject, found.labels, epsilons, chosen)
        console.print(_table(subject, found, results))
        if self.out is not None:
            _write(self.out, subject, found, results)
        for at, certified in zip(results, found.certified_by_any, strict=True):
            check_sandwich(at, certified)
        console.print("certified ≤ robust ≤ clean holds for every sample")
        return 0

    def _attacks(self) -> dict[str, AttackFunction]:
        exponents = parse_exponents(self.p)
        if not self.attacks:
            raise ArgumentError(f"--attacks names none; known are {', '.join(ATTACKS)}")
        for name in self.attacks:
            if name not in ATTACKS:
                raise ArgumentError(f"--attacks has {name!r}; known are {', '.join(ATTACKS)}")
        return known_attacks(
            self.attacks, steps=self.steps, restarts=self.restarts, exponents=exponents, queries=self.queries
        )

    def _attack(
        self,
        net: Classifier,
        subject: Subject,
        labels: torch.Tensor,
        epsilons: tuple[Fraction, ...],
        chosen: dict[str, AttackFunction],
    ) -> list[Attacked]:
        with console.status("attacking") as status:

            def tell(name: str, epsilon: Fraction, left: int) -> None:
                status.update(f"{name} at eps = {format_epsilon(epsilon)}: {left} samples left")

            return attack_all(net, subject.pixels, labels, epsilons, chosen, seed=self.seed, report=tell)


def _table(subject: Subject, found: Certification, results: list[Attacked]) -> Table:
    table = Table(
        title=f"{len(subject.names)} images of {subject.title}: share left after each attack in turn, in %",
        title_justify="left",
    )
    table.add_column("eps")
    for name in ("certified", "robust", *results[0].after, "clean"):
        table.add_column(name, justify="right")
    for at, certified in zip(results, found.certified_by_any, strict=True):
        shares = (certified.double().mean().item(), at.robust, *at.after.values(), found.clean)
        table.add_row(format_epsilon(at.epsilon), *map(percent, shares))
    return table


def _write(out: Path, subject: Subject, found: Certification, results: list[Attacked]) -> None:
    make_folder(out)
    header = ["image", "label", *(f"survived@{format_epsilon(at.epsilon)}" for at in results)]
    columns = (at.survived.int().tolist() for at in results)
    with (
        replacing(out / "attacked.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(subject.names, found.labels.tolist(), *columns, strict=True))
    for at in results:
        name = format_epsilon(at.epsilon).replace("/", "-of-")
        with replacing(out / f"attacked-{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, at.images.cpu().numpy())
    console.print(f"attacked images: {out}")
