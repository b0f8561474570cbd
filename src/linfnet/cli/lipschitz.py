"""`linfnet lipschitz`: bounds on the Lipschitz constant of a trained net at finite p."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from linfnet.cli.console import console
from linfnet.cli.evaluate import load_for
from linfnet.cli.theory import draw_into, with_progress
from linfnet.cli.train import pick_device
from linfnet.data import ImageSet
from linfnet.epsilon import parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.nn.model_path import packaged_hint
from linfnet.ops import check_p
from linfnet.theory import Estimate, lipschitz_estimate
from linfnet.theory.plots import draw_quantiles
from linfnet.train import RunFolder, environment


@dataclass(frozen=True)
class Lipschitz:
    """Bound the Lipschitz constant of a trained net relaxed to a finite p, from above and from below."""

    model: tyro.conf.Positional[Path]
    """A finished run, or any folder with model.safetensors and config.json."""
    p: str = "8"
    """Exponent of all layers: a number >= 1, or inf."""
    split: Literal["test", "train"] = "test"
    """Which images."""
    limit: int | None = None
    """Only the first so many images."""
    eps: str = "1/255"
    """Radius of the balls in which the logits are changed, in pixel units."""
    steps: int = 20
    """Steps of eps/4 in each ascent."""
    restarts: int = 5
    """Ascents for each image and label."""
    batch: int = 100
    """Images at once; each takes a row for every label."""
    seed: int = 0
    """Seed of the starting points."""
    data: str | None = None
    """Another data set than the run's own."""
    device: str = "auto"
    """cpu, cuda, …; auto takes a GPU if there is one."""

    def run(self) -> int:
        """Print both bounds; write them and the quantile plot into the folder."""
        p, epsilon = self._p(), parse_epsilon(self.eps, "--eps")
        at_least("--seed", self.seed, 0)
        device = pick_device(self.device)
        net, images = self._load(device)
        pixels = images.pixels()
        generator = torch.Generator(device).manual_seed(self.seed)
        start = time.perf_counter()
        estimate: Estimate = with_progress(
            "ascending",
            len(images),
            lambda advance: lipschitz_estimate(
                net,
                pixels,
                p,
                epsilon=epsilon,
                steps=self.steps,
                restarts=self.restarts,
                batch=self.batch,
                generator=generator,
                advance=advance,
            ),
        )
        seconds = time.perf_counter() - start
        summary = estimate.summary()
        record = {
            "model": self.model.name,
            "data": f"{images.info.name}-{self.split}",
            **summary,
            "upper_from_pixels": estimate.upper * net.lipschitz,
            "steps": self.steps,
            "restarts": self.restarts,
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "environment": environment(),
        }
        file = self.model / f"lipschitz-p{p:g}.json"
        write_json(file, record)
        console.print(
            f"p = {p:g}: mean {summary['mean']:.4g}, largest {summary['max']:.4g} over {len(images)} images; "
            f"upper bound {estimate.upper:.4g} (distance layers; from pixels {net.lipschitz:.4g} times as much)"
        )
        console.print(f"by layer: {'  '.join(f'{bound:.4g}' for bound in estimate.layers)}  ({seconds:.0f} s)")
        console.print(f"result: {file}")
        draw_into(file.with_suffix(".png"), lambda path: draw_quantiles(path, estimate))
        return 0

    def _p(self) -> float:
        try:
            value = float(self.p)
        except ValueError:
            raise ArgumentError(f"--p is {self.p!r}; wanted a number >= 1 or inf") from None
        return math.inf if math.isinf(check_p(value, "--p")) else value

    def _load(self, device: torch.device) -> tuple[LinfNet, ImageSet]:
        for name, value in (("--limit", self.limit), ("--steps", self.steps), ("--restarts", self.restarts)):
            if value is not None:
                at_least(name, value, 1)
        if not self.model.is_dir():
            raise LinfnetError(f"{self.model} is not a folder{packaged_hint(self.model)}")
        name = self.data
        if name is None and (self.model / "recipe.toml").is_file():
            name = RunFolder.open(self.model).recipe.data.name
        if name is None:
            raise ArgumentError(f"{self.model} has no recipe.toml: give --data")
        net = LinfNet.load(self.model, device=device)
        images = load_for(net, self.model, name, self.split).first(self.limit).to(device)
        return net, images
