"""The training loop of the paper, in one sitting."""

import hashlib
import math
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from linfnet.data import EpochPlan, ImageSet, augment, plan_epoch, to_pixels
from linfnet.distributed.group import ALONE, GradientSum, Ranks
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet, count_parameters, means_at_infinity, reestimate_means, share_means
from linfnet.recipes import recipe_to_toml
from linfnet.results import results_from_json
from linfnet.systems import Seen, SeenSystem, system_of
from linfnet.train.checkpoint import Progress, load_newest_on_all, save_checkpoint
from linfnet.train.cuda_graphs import STEPS_THAT_PAY, Passes
from linfnet.train.decay import decay_weights
from linfnet.train.results import add_results
from linfnet.train.run_folder import RunFolder, go_on
from linfnet.train.signals import StopRequest, stop_on_signals
from linfnet.train.steps import (
    RECORD_COLUMNS,
    StepValues,
    build_optimizer,
    check_finite,
    record_step,
    step_values,
    summarise,
)
from linfnet.train.validation import (
    accuracy,
    certified_shares,
    margin_certified,
    margin_statistics,
    pixel_batches,
    predict,
)

# Training images on which running means are re-estimated before a test at p = inf.
MEAN_IMAGES = 8192


class StoppedError(LinfnetError):
    """The run was asked to stop; its checkpoint is written."""


class Watcher(Protocol):
    """Somebody who looks on while a run trains."""

    def step(self, step: int, values: StepValues, so_far: dict[str, float]) -> None:
        """After each step; `so_far` summarises the epoch on a CPU and the last epoch on a GPU."""
        ...

    def event(self, event: dict[str, Any]) -> None:
        """After each epoch and each test, as logged."""
        ...


class Trainer:
    """A run in progress: the net, its optimizer and its place in the schedule.

    Several processes (`ranks`) share each batch of the recipe and follow the run of a single one, up to rounding.
    """

    def __init__(
        self, folder: RunFolder, images: ImageSet, test: ImageSet, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self.folder, self.recipe, self.device = folder, folder.recipe, device
        self.images, self.test = images.first(self.recipe.data.limit or None).to(device), test.to(device)
        self.batch = self.recipe.optimizer.batch
        self.steps_per_epoch = math.ceil(len(self.images) / self.batch)
        self.total_steps = self.steps_per_epoch * self.recipe.schedule.phases().total
        self.system = system_of(self.recipe)
        torch.manual_seed(self.recipe.run.seed)
        try:
            self.net = self.system.build(self.recipe, images.info).to(device)
        except RuntimeError as error:
            raise LinfnetError(f"the net cannot be built: {str(error).splitlines()[0]}") from None
        self.recipe_digest = hashlib.sha256(recipe_to_toml(self.recipe).encode()).hexdigest()
        self.optimizer = build_optimizer(self.recipe, self.net)
        # Other systems have no theta: their margins are counted above and below 0.
        self.threshold = float(self.recipe.loss.theta) * self.net.lipschitz if isinstance(self.net, LinfNet) else 0.0
        self.record = torch.zeros(self.steps_per_epoch, RECORD_COLUMNS, device=device)
        sizes = [min(self.batch, len(self.images) - start) for start in range(0, len(self.images), self.batch)]
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        # The variance of a single image is none.
        least = 2 if any(isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d) for each in self.net.modules()) else 1
        if min(sizes) < least * ranks.size:
            raise ArgumentError(
                f"optimizer.batch is {self.batch}: it leaves a last batch of {min(sizes)} images, "
                f"too few for {f'{ranks.size} processes' if ranks.size > 1 else 'batch norm'}"
            )
        self.ranks = ranks
        self.gradients = GradientSum(ranks, self.net.parameters())
        self.passes: Passes | None = None
        if isinstance(self.system, SeenSystem):
            graphs = self.recipe.run.graphs and device.type == "cuda" and ranks.size == 1 and self.system.replayable
            self.passes = Passes(Seen(self.system, self.net), max(sizes), graphs=graphs)
        share_means(self.net, ranks)
        ranks.spread_(self.net.state_dict().values())
        self.progress = Progress()
        self.last_epoch: dict[str, float] = {}
        self.saved_at = time.monotonic()

    def resume(self) -> list[str]:
        """Go back to the newest whole checkpoint; the list says what was wrong with newer ones."""
        state = (self.net, self.optimizer, self.record)
        self.progress, complaints = load_newest_on_all(self.folder.checkpoints, *state, self.recipe_digest, self.ranks)
        if self.progress.step:
            self.net.p = step_values(self.recipe, self.progress.step - 1, self.steps_per_epoch).p
        if self.ranks.first:
            self.folder.rewind(self.progress.step)
        return complaints

    def run(self, watcher: Watcher) -> None:
        """Train to the end of the schedule and write the model."""
        housekeeping = self.recipe.run
        self.net.train()
        with self.folder.guarded(), stop_on_signals() as stop:
            while self.progress.step < self.total_steps:
                self._epoch(watcher, stop)
                epoch = self.progress.step // self.steps_per_epoch
                last = self.progress.step == self.total_steps
                if last or (housekeeping.test_every and epoch % housekeeping.test_every == 0):
                    self._log(watcher, "test", self._test())
                old = time.monotonic() - self.saved_at > 60 * housekeeping.checkpoint_minutes
                if last or old or (housekeeping.checkpoint_every and epoch % housekeeping.checkpoint_every == 0):
                    self._save()
                if not last and self.ranks.any(bool(stop)):
                    self._stop()
            self._finish()

    def _epoch(self, watcher: Watcher, stop: StopRequest) -> None:
        """Train from the present step to the end of its epoch."""
        epoch, done = divmod(self.progress.step, self.steps_per_epoch)
        start = time.perf_counter() - self.progress.seconds
        for row, (pixels, labels) in enumerate(self._batches(epoch, done), done):
            values = self._step(row, pixels, labels)
            self.progress.step += 1
            self.progress.seconds = time.perf_counter() - start
            if self.device.type == "cpu":
                check_finite(self.record[row : row + 1], self.progress.step - 1, self.recipe, self.steps_per_epoch)
                self.last_epoch = summarise(self.record[: row + 1], self.sizes[: row + 1])
            watcher.step(self.progress.step, values, self.last_epoch)
            if row + 1 == self.steps_per_epoch:
                break  # `run` saves and stops between two epochs
            stopping = self.ranks.any(bool(stop))
            if stopping or 0 < 60 * self.recipe.run.checkpoint_minutes < time.monotonic() - self.saved_at:
                check_finite(self.record[: row + 1], epoch * self.steps_per_epoch, self.recipe, self.steps_per_epoch)
                begin = time.perf_counter()
                if stopping:
                    self._stop()
                self._save()
                start += time.perf_counter() - begin  # writing is not training
        check_finite(self.record, epoch * self.steps_per_epoch, self.recipe, self.steps_per_epoch)
        self.progress.seconds = time.perf_counter() - start
        self.last_epoch = summarise(self.record, self.sizes)
        final = step_values(self.recipe, self.progress.step - 1, self.steps_per_epoch)
        # JSON has no infinity; float("inf") reads this back.
        p = final.p if math.isfinite(final.p) else "inf"
        values = {"p": p, "lambda": final.mixing, "lr": final.lr, "scale": self.net.scale.item()}
        self._log(watcher, "epoch", {**values, **self.last_epoch})

    def _batches(self, epoch: int, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the epoch's batches after the first `done`: pixels [B, C, H, W] and labels [B]."""
        data, info = self.recipe.data, self.images.info
        plan: EpochPlan = plan_epoch(len(self.images), self.recipe.run.seed, epoch, pad=data.pad, flip=data.flip)
        plan = plan.to(self.device)
        for start in range(done * self.batch, len(self.images), self.batch):
            mine = self.ranks.share(min(self.batch, len(self.images) - start))
            part = slice(start + mine.start, start + mine.stop)
            index = plan.order[part]
            crops = augment(self.images.images[index], plan.top[part], plan.left[part], plan.flip[part], data.pad)
            yield to_pixels(crops, info.white), self.images.labels[index]

    def _step(self, row: int, pixels: Tensor, labels: Tensor) -> StepValues:
        values = step_values(self.recipe, self.progress.step, self.steps_per_epoch)
        self.net.p = values.p
        self.optimizer.param_groups[0]["lr"] = values.lr
        self.optimizer.param_groups[1]["lr"] = values.lr * self.recipe.optimizer.scale_lr_factor
        epoch = self.progress.step / self.steps_per_epoch
        seen: Tensor | None = None
        if self.passes and isinstance(self.system, SeenSystem):
            seen = self.passes.forward(pixels, values.p, self._p_lasts)
            loss, logits = self.system.loss_of_seen(self.recipe, self.net, seen, labels, epoch)
        else:
            loss, logits = self.system.loss(self.recipe, self.net, pixels, labels, epoch)
        if self.ranks.size > 1:
            loss = loss * (len(labels) / self.sizes[row].item())  # the batch's mean is the sum over all processes
        self.optimizer.zero_grad()
        loss.backward()
        if self.passes and seen is not None:
            self.passes.backward(seen)
        self.gradients.wait()
        decay_weights(self.net, values.lr * self.recipe.optimizer.weight_decay)
        self.optimizer.step()
        record_step(self.record, row, loss.detach(), logits.detach(), labels, self.threshold)
        self.ranks.sum_(self.record[row])
        return values

    def _p_lasts(self) -> bool:
        ahead = min(self.progress.step + STEPS_THAT_PAY, self.total_steps - 1)
        return step_values(self.recipe, ahead, self.steps_per_epoch).p == self.net.p

    def _test(self) -> dict[str, Any]:
        """Test accuracy at the present p, and clean and certified accuracy at p = inf."""
        self.net.eval()
        at_p = accuracy(predict(self.net, self.test, self.ranks), self.test.labels)
        self.net.train()
        if math.isinf(self.net.p):
            with self.net.at_infinity():
                figures = self._figures(self.test)
        else:
            with means_at_infinity(self.net, self._mean_batches):
                figures = self._figures(self.test)
        return {"accuracy_at_p": at_p, **figures}

    def _figures(self, images: ImageSet, margins: bool = False) -> dict[str, Any]:
        """Clean and certified accuracy of the net at p = inf in eval mode, and how its margins lie if asked."""
        logits, epsilons = predict(self.net, images, self.ranks), self.recipe.evaluation.eps
        if isinstance(self.net, LinfNet):
            certified = margin_certified(logits, images.labels, self.net.lipschitz, epsilons)
        else:
            certified = certified_shares(self.net, images, epsilons)
        shares = margin_statistics(logits, images.labels, self.threshold) if margins else {}
        return {"clean": accuracy(logits, images.labels), "certified": certified, **shares}

    def _mean_batches(self) -> Iterator[Tensor]:
        batches = pixel_batches(self.images.first(MEAN_IMAGES), self.batch)
        return (batch[self.ranks.share(len(batch))] for batch in batches)

    def _log(self, watcher: Watcher, event: str, values: dict[str, Any]) -> None:
        place = {"epoch": self.progress.step // self.steps_per_epoch, "step": self.progress.step}
        entry = {**place, "seconds": round(self.progress.seconds, 3), **values}
        if self.ranks.first:
            self.folder.log(event, **entry)
        watcher.event({"event": event, **entry})

    def _save(self) -> None:
        if self.ranks.first:
            keep = self.recipe.run.keep_checkpoints
            state = (self.net, self.optimizer, self.record, self.progress)
            save_checkpoint(self.folder.checkpoints, *state, recipe_digest=self.recipe_digest, keep=keep)
        self.saved_at = time.monotonic()

    def _stop(self) -> None:
        self._save()
        raise StoppedError(f"stopped at step {self.progress.step}; {go_on(self.folder.path)}")

    def _finish(self) -> None:
        """Write the model folder and the first entry of its results."""
        if not math.isinf(self.net.p):
            reestimate_means(self.net, self._mean_batches())
        with self.net.at_infinity():
            figures, train_figures = self._figures(self.test), self._figures(self.images, margins=True)
        results = {
            **figures,
            "training_images": train_figures,
            "epochs": self.recipe.schedule.phases().total,
            "seconds": round(self.progress.seconds, 1),
            "seed": self.recipe.run.seed,
            "parameters": count_parameters(self.net),
            "device": self.device.type,
            "processes": self.ranks.size,
        }
        if self.ranks.first:
            self._write(results)
        self.ranks.any(False)  # nobody leaves before the model is written

    def _write(self, results: dict[str, Any]) -> None:
        self.net.save(
            self.folder.path, class_names=self.images.info.classes, results=results_from_json({"train": results})
        )
        self.folder.log("finish", step=self.progress.step, seconds=round(self.progress.seconds, 3))
        add_results(self.folder.path, {"train": results})  # the last step: by this file a run has finished
