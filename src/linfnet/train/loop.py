"""The training loop."""

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from linfnet.data import ImageSet, augment, plan_epoch, to_pixels
from linfnet.distributed.group import ALONE, GradientSum, Ranks
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import count_parameters, means_at_infinity, reestimate_means, share_means
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.results import Results, TrainingResult, write_training
from linfnet.schedules import StepState
from linfnet.systems import FeatureModule, FeatureSystem, system_of
from linfnet.train.checkpoint import Progress, StopRequest, load_newest_on_all, save_checkpoint, stop_on_signals
from linfnet.train.cuda_graphs import STEPS_TO_PAY_OFF, GraphedModule
from linfnet.train.run_folder import RunFolder, resume_hint
from linfnet.train.steps import (
    RECORD_COLUMNS,
    build_optimizer,
    check_finite,
    decay_weights,
    record_step,
    step_state,
    summarise,
)
from linfnet.train.validation import accuracies, accuracy, pixel_batches, predict

# Number of training images from which running means are re-estimated before a test at p = inf.
MEAN_IMAGES = 8192


class StoppedError(LinfnetError):
    """The run was stopped by a signal, after writing a checkpoint."""


class Watcher(Protocol):
    """An observer of a run."""

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Called after each step; `so_far` summarises this epoch on a CPU, the last epoch on a GPU."""
        ...

    def event(self, event: dict[str, Any]) -> None:
        """Called after each epoch and each test with the event as logged."""
        ...


class Trainer:
    """A training run: the net, its optimizer and its progress.

    Args:
        recipe: the settings.
        images: the training images.
        test: the test images.
        device: where to train.
        folder: where the first process writes checkpoints, events, the model and its results; None: nowhere.
        ranks: the processes that share each batch; they train the net that a single process would, up to rounding.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: ImageSet,
        test: ImageSet,
        device: torch.device,
        *,
        folder: RunFolder | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.recipe, self.device, self.folder, self.ranks = recipe, device, folder, ranks
        self._output = folder if ranks.first else None
        self.images, self.test = images.first(recipe.data.limit or None).to(device), test.to(device)
        self.batch = recipe.optimizer.batch
        self.steps_per_epoch = math.ceil(len(self.images) / self.batch)
        self.total_steps = self.steps_per_epoch * recipe.schedule.phases().total
        self.system = system_of(recipe)
        torch.manual_seed(recipe.run.seed)
        try:
            self.net = self.system.build(recipe, images.info).to(device)
        except RuntimeError as error:
            raise LinfnetError(f"the net cannot be built: {str(error).splitlines()[0]}") from None
        self.recipe_digest = hashlib.sha256(recipe_to_toml(recipe).encode()).hexdigest()
        self.optimizer = build_optimizer(recipe, self.net)
        # Nets without a Lipschitz constant have no theta: their margins are counted above and below 0.
        self.threshold = recipe.loss.threshold(self.net.lipschitz or 0.0)
        self.record = torch.zeros(self.steps_per_epoch, RECORD_COLUMNS, device=device)
        sizes = [min(self.batch, len(self.images) - start) for start in range(0, len(self.images), self.batch)]
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        # Batch norm needs at least two images in each process.
        least = 2 if any(isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d) for each in self.net.modules()) else 1
        if min(sizes) < least * ranks.size:
            raise ArgumentError(
                f"optimizer.batch is {self.batch}: it leaves a last batch of {min(sizes)} images, "
                f"too few for {f'{ranks.size} processes' if ranks.size > 1 else 'batch norm'}"
            )
        self.gradients = GradientSum(ranks, self.net.parameters())
        self.graphed: GraphedModule | None = None
        if recipe.run.graphs and device.type == "cuda" and ranks.size == 1 and isinstance(self.system, FeatureSystem):
            module = FeatureModule(self.system, self.net)
            self.graphed = GraphedModule(module, max(sizes), lambda: self.net.p, self._p_stays)
        share_means(self.net, ranks)
        ranks.spread_(self.net.state_dict().values())
        self.progress = Progress()
        self.last_epoch: dict[str, float] = {}
        self.saved_at = time.monotonic()

    def resume(self) -> list[str]:
        """Continue from the newest valid checkpoint of the folder; returns an error message for each newer one."""
        assert self.folder is not None
        state = (self.net, self.optimizer, self.record)
        self.progress, errors = load_newest_on_all(self.folder.checkpoints, *state, self.recipe_digest, self.ranks)
        if self.progress.step:
            self.net.p = step_state(self.recipe, self.progress.step - 1, self.steps_per_epoch).p
        if self._output:
            self._output.rewind(self.progress.step)
        return errors

    def run(self, watcher: Watcher | None = None) -> TrainingResult:
        """Train to the end of the schedule, and write the model."""
        settings = self.recipe.run
        self.net.train()
        guard = self.folder.guarded() if self.folder else contextlib.nullcontext()
        with guard, stop_on_signals() as stop:
            while self.progress.step < self.total_steps:
                self._epoch(watcher, stop)
                epoch = self.progress.step // self.steps_per_epoch
                last = self.progress.step == self.total_steps
                if last or (settings.test_every and epoch % settings.test_every == 0):
                    self._log(watcher, "test", self._test())
                old = time.monotonic() - self.saved_at > 60 * settings.checkpoint_minutes
                if last or old or (settings.checkpoint_every and epoch % settings.checkpoint_every == 0):
                    self._save()
                if not last and self.ranks.any(stop.requested):
                    self._stop()
            return self._finish()

    def _epoch(self, watcher: Watcher | None, stop: StopRequest) -> None:
        """Train from the current step to the end of its epoch."""
        epoch, done = divmod(self.progress.step, self.steps_per_epoch)
        start = time.perf_counter() - self.progress.seconds
        for row, (pixels, labels) in enumerate(self._batches(epoch, done), done):
            state = self._step(row, pixels, labels)
            self.progress.step += 1
            self.progress.seconds = time.perf_counter() - start
            if self.device.type == "cpu":
                check_finite(self.record[row : row + 1], self.progress.step - 1, self.recipe, self.steps_per_epoch)
                self.last_epoch = summarise(self.record[: row + 1], self.sizes[: row + 1])
            if watcher:
                watcher.step(self.progress.step, state, self.last_epoch)
            if row + 1 == self.steps_per_epoch:
                break  # `run` saves and stops between two epochs
            stopping = self.ranks.any(stop.requested)
            if stopping or 0 < 60 * self.recipe.run.checkpoint_minutes < time.monotonic() - self.saved_at:
                check_finite(self.record[: row + 1], epoch * self.steps_per_epoch, self.recipe, self.steps_per_epoch)
                begin = time.perf_counter()
                if stopping:
                    self._stop()
                self._save()
                start += time.perf_counter() - begin  # do not count the time of writing as training
        check_finite(self.record, epoch * self.steps_per_epoch, self.recipe, self.steps_per_epoch)
        self.progress.seconds = time.perf_counter() - start
        self.last_epoch = summarise(self.record, self.sizes)
        final = step_state(self.recipe, self.progress.step - 1, self.steps_per_epoch)
        # JSON has no infinity; float("inf") parses this text.
        p = final.p if math.isfinite(final.p) else "inf"
        values = {"p": p, "lambda": final.mixing, "lr": final.lr, "scale": self.net.scale.item()}
        self._log(watcher, "epoch", {**values, **self.last_epoch})

    def _batches(self, epoch: int, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the epoch's batches after the first `done`: pixels [B, C, H, W] and labels [B]."""
        data, info = self.recipe.data, self.images.info
        plan = plan_epoch(len(self.images), self.recipe.run.seed, epoch, pad=data.pad, flip=data.flip).to(self.device)
        for start in range(done * self.batch, len(self.images), self.batch):
            mine = self.ranks.share(min(self.batch, len(self.images) - start))
            part = slice(start + mine.start, start + mine.stop)
            index = plan.order[part]
            crops = augment(self.images.images[index], plan.top[part], plan.left[part], plan.flip[part], data.pad)
            yield to_pixels(crops, info.white), self.images.labels[index]

    def _step(self, row: int, pixels: Tensor, labels: Tensor) -> StepState:
        """One step of training: `row` is its index in the epoch."""
        state = step_state(self.recipe, self.progress.step, self.steps_per_epoch)
        self.net.p = state.p
        self.optimizer.param_groups[0]["lr"] = state.lr
        self.optimizer.param_groups[1]["lr"] = state.lr * self.recipe.optimizer.scale_lr_factor
        loss, logits = self._loss(pixels, labels, state)
        if self.ranks.size > 1:
            loss = loss * (len(labels) / self.sizes[row].item())  # the sum over all processes is the mean of the batch
        self.optimizer.zero_grad()
        loss.backward()
        self.gradients.wait()
        decay_weights(self.net, state.lr * self.recipe.optimizer.weight_decay)
        self.optimizer.step()
        record_step(self.record, row, loss.detach(), logits.detach(), labels, self.threshold)
        self.ranks.sum_(self.record[row])
        return state

    def _loss(self, pixels: Tensor, labels: Tensor, state: StepState) -> tuple[Tensor, Tensor]:
        if self.graphed and isinstance(self.system, FeatureSystem):  # on a GPU
            return self.system.loss_from_features(self.recipe, self.net, self.graphed(pixels), labels, state)
        return self.system.loss(self.recipe, self.net, pixels, labels, state)

    def _p_stays(self) -> bool:
        ahead = min(self.progress.step + STEPS_TO_PAY_OFF, self.total_steps - 1)
        return step_state(self.recipe, ahead, self.steps_per_epoch).p == self.net.p

    def _test(self) -> dict[str, Any]:
        """Test accuracy at the current p, and clean and certified test accuracy at p = inf."""
        self.net.eval()
        at_p = accuracy(predict(self.net, self.test, self.ranks), self.test.labels)
        self.net.train()
        infinite = math.isinf(self.net.p)
        with self.net.at_infinity() if infinite else means_at_infinity(self.net, self._mean_batches):
            found = accuracies(self.net, self.test, self.recipe.evaluation.eps, self.ranks)
        certified = {format_epsilon(eps): share for eps, share in found.certified.items()}
        return {"accuracy_at_p": at_p, "clean": found.clean, "certified": certified}

    def _mean_batches(self) -> Iterator[Tensor]:
        batches = pixel_batches(self.images.first(MEAN_IMAGES), self.batch)
        return (batch[self.ranks.share(len(batch))] for batch in batches)

    def _log(self, watcher: Watcher | None, event: str, values: dict[str, Any]) -> None:
        epoch = self.progress.step // self.steps_per_epoch
        entry = {"epoch": epoch, "step": self.progress.step, "seconds": round(self.progress.seconds, 3), **values}
        if self._output:
            self._output.log(event, **entry)
        if watcher:
            watcher.event({"event": event, **entry})

    def _save(self) -> None:
        if self._output:
            keep = self.recipe.run.keep_checkpoints
            state = (self.net, self.optimizer, self.record, self.progress)
            save_checkpoint(self._output.checkpoints, *state, recipe_digest=self.recipe_digest, keep=keep)
        self.saved_at = time.monotonic()

    def _stop(self) -> None:
        self._save()
        hint = f"; {resume_hint(self.folder.path)}" if self.folder else ""
        raise StoppedError(f"stopped at step {self.progress.step}{hint}")

    def _finish(self) -> TrainingResult:
        """Evaluate the net at p = inf, and write the model folder."""
        if not math.isinf(self.net.p):
            reestimate_means(self.net, self._mean_batches())
        epsilons = self.recipe.evaluation.eps
        with self.net.at_infinity():
            result = TrainingResult(
                accuracies(self.net, self.test, epsilons, self.ranks),
                accuracies(self.net, self.images, epsilons, self.ranks, threshold=self.threshold),
                epochs=self.recipe.schedule.phases().total,
                seconds=round(self.progress.seconds, 1),
                seed=self.recipe.run.seed,
                parameters=count_parameters(self.net),
                device=self.device.type,
                processes=self.ranks.size,
            )
        if self._output:
            self._write(self._output, result)
        self.ranks.any(False)  # all processes wait until the model is written
        return result

    def _write(self, folder: RunFolder, result: TrainingResult) -> None:
        self.net.save(folder.path, class_names=self.images.info.classes, results=Results(result))
        folder.log("finish", step=self.progress.step, seconds=round(self.progress.seconds, 3))
        write_training(folder.path, result)  # last: a run has finished if this file exists
