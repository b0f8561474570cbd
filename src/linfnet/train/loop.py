"""The training loop, and functions that start or resume a run in a folder."""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from linfnet.data import ImageSet, augment, load, plan_epoch
from linfnet.distributed.group import ALONE, GradientSum, Group
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import cut_short
from linfnet.nn import count_parameters, means_at_infinity, reestimate_means, share_means
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.results import Results, TrainingResult, write_training
from linfnet.schedules import StepState
from linfnet.systems import FeatureModule, FeatureSystem, system_of
from linfnet.train.checkpoint import Progress, StoppedError, load_newest, save_checkpoint, stop_on_signals
from linfnet.train.cuda_graphs import STEPS_TO_PAY_OFF, GraphedModule
from linfnet.train.metrics import RECORD_COLUMNS, accuracies, pixel_batches, record_step, summarise
from linfnet.train.optimizer import build_optimizer, decay_weights, step_state
from linfnet.train.run_folder import RunFolder, resume_hint

# Number of training images from which running means are re-estimated before a test at p = inf.
MEAN_IMAGES = 8192


class Watcher(Protocol):
    """An observer of a run."""

    def step(self, step: int, state: StepState, so_far: dict[str, float]) -> None:
        """Called after each step. `so_far`: metrics of the current epoch on a CPU, of the previous epoch on a GPU."""

    def event(self, event: dict[str, Any]) -> None:
        """Called after each epoch and each test with the logged event."""


class Trainer:
    """A training run: the net, its optimizer and its progress.

    The first process writes checkpoints, events, the model and its results into the folder, if there is one. The
    processes of a group share each batch. Up to rounding, they train the same net as a single process.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: ImageSet,
        test: ImageSet,
        device: torch.device,
        *,
        folder: RunFolder | None = None,
        group: Group = ALONE,
    ) -> None:
        self.recipe, self.device, self.folder, self.group = recipe, device, folder, group
        self._output = folder if group.first else None
        self.images, self.test = images.first(recipe.data.limit or None).to(device), test.to(device)
        self.batch = recipe.optimizer.batch
        self.steps_per_epoch = math.ceil(len(self.images) / self.batch)
        self.total_steps = self.steps_per_epoch * recipe.schedule.phases().total
        self.state_at = partial(step_state, recipe, steps_per_epoch=self.steps_per_epoch)
        self.system = system_of(recipe)
        torch.manual_seed(recipe.run.seed)
        try:
            self.net = self.system.build(recipe, images.info).to(device)
        except RuntimeError as error:
            raise LinfnetError(f"the net cannot be built: {str(error).splitlines()[0]}") from None
        self.recipe_digest = hashlib.sha256(recipe_to_toml(recipe).encode()).hexdigest()
        self.optimizer = build_optimizer(recipe, self.net)
        # Nets without a Lipschitz constant have no theta: for them, only the sign of each margin is counted.
        self.threshold = recipe.loss.threshold(self.net.lipschitz or 0.0)
        self.record = torch.zeros(self.steps_per_epoch, RECORD_COLUMNS, device=device)
        sizes = [min(self.batch, len(self.images) - start) for start in range(0, len(self.images), self.batch)]
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        # Batch norm needs at least two images in each process.
        least = 2 if any(isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d) for each in self.net.modules()) else 1
        if min(sizes) < least * group.size:
            raise ArgumentError(
                f"optimizer.batch is {self.batch}: it leaves a last batch of {min(sizes)} images, "
                f"too few for {f'{group.size} processes' if group.size > 1 else 'batch norm'}"
            )
        self.gradients = GradientSum(group, self.net.parameters())
        self.graphed: GraphedModule | None = None
        if recipe.run.graphs and device.type == "cuda" and group.size == 1 and isinstance(self.system, FeatureSystem):
            module = FeatureModule(self.system, self.net)
            self.graphed = GraphedModule(module, max(sizes), lambda: self.net.p, self._p_stays)
        share_means(self.net, group)
        group.spread_(self.net.state_dict().values())
        self.progress = Progress()
        self.last_epoch: dict[str, float] = {}
        self.saved_at = time.monotonic()

    def resume(self) -> list[str]:
        """Load the newest valid checkpoint of the folder; return an error message for each newer, invalid one."""
        assert self.folder is not None
        state = (self.net, self.optimizer, self.record)
        self.progress, errors = load_newest(self.folder.checkpoints, *state, self.recipe_digest, self.group)
        if self.progress.step:
            self.net.p = self.state_at(self.progress.step - 1).p
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
                if not last and self.group.any(stop.is_set()):
                    self._stop()
            return self._finish()

    def _epoch(self, watcher: Watcher | None, stop: Event) -> None:
        """Train from the current step to the end of its epoch."""
        epoch, done = divmod(self.progress.step, self.steps_per_epoch)
        first_step = self.progress.step - done
        start = time.perf_counter() - self.progress.seconds
        for row, (pixels, labels) in enumerate(self._batches(epoch, done), done):
            state = self._step(row, pixels, labels)
            self.progress.step += 1
            self.progress.seconds = time.perf_counter() - start
            if self.device.type == "cpu":
                self.last_epoch = summarise(self.record[: row + 1], self.sizes[: row + 1], first_step, self.state_at)
            if watcher:
                watcher.step(self.progress.step, state, self.last_epoch)
            if row + 1 == self.steps_per_epoch:
                break  # `run` saves and stops between two epochs
            stopping = self.group.any(stop.is_set())
            if stopping or 0 < 60 * self.recipe.run.checkpoint_minutes < time.monotonic() - self.saved_at:
                self.last_epoch = summarise(self.record[: row + 1], self.sizes[: row + 1], first_step, self.state_at)
                begin = time.perf_counter()
                if stopping:
                    self._stop()
                self._save()
                start += time.perf_counter() - begin  # do not count the time for writing as training time
        self.last_epoch = summarise(self.record, self.sizes, first_step, self.state_at)
        self.progress.seconds = time.perf_counter() - start
        final = self.state_at(self.progress.step - 1)
        p = final.p if math.isfinite(final.p) else "inf"  # JSON has no infinity; float(p) accepts both forms
        values = {"p": p, "lambda": final.mixing, "lr": final.lr, "scale": self.net.scale.item()}
        self._log(watcher, "epoch", {**values, **self.last_epoch})

    def _batches(self, epoch: int, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's part of each batch after the first `done` ones: pixels [B, C, H, W] and labels [B]."""
        data = self.recipe.data
        plan = plan_epoch(len(self.images), self.recipe.run.seed, epoch, pad=data.pad, flip=data.flip).to(self.device)
        for start in range(done * self.batch, len(self.images), self.batch):
            mine = self.group.share(min(self.batch, len(self.images) - start))
            part = slice(start + mine.start, start + mine.stop)
            index = plan.order[part]
            crops = augment(self.images.images[index], plan.top[part], plan.left[part], plan.flip[part], data.pad)
            yield self.images.as_pixels(crops), self.images.labels[index]

    def _step(self, row: int, pixels: Tensor, labels: Tensor) -> StepState:
        """Perform one training step; `row` is its index in the epoch."""
        state = self.state_at(self.progress.step)
        self.net.p = state.p
        self.optimizer.param_groups[0]["lr"] = state.lr
        self.optimizer.param_groups[1]["lr"] = state.lr * self.recipe.optimizer.scale_lr_factor
        loss, logits = self._loss(pixels, labels, state)
        if self.group.size > 1:
            loss = loss * (len(labels) / self.sizes[row].item())  # the sum over all processes is the batch mean
        self.optimizer.zero_grad()
        loss.backward()
        self.gradients.wait()
        decay_weights(self.net, state.lr * self.recipe.optimizer.weight_decay)
        self.optimizer.step()
        record_step(self.record, row, loss.detach(), logits.detach(), labels, self.threshold)
        self.group.sum_(self.record[row])
        return state

    def _loss(self, pixels: Tensor, labels: Tensor, state: StepState) -> tuple[Tensor, Tensor]:
        if self.graphed and isinstance(self.system, FeatureSystem):  # on a GPU
            return self.system.loss_from_features(self.recipe, self.net, self.graphed(pixels), labels, state)
        return self.system.loss(self.recipe, self.net, pixels, labels, state)

    def _p_stays(self) -> bool:
        return self.state_at(min(self.progress.step + STEPS_TO_PAY_OFF, self.total_steps - 1)).p == self.net.p

    def _test(self) -> dict[str, Any]:
        """Return the test accuracy at the current p, and the clean and certified test accuracy at p = inf."""
        self.net.eval()
        at_p = accuracies(self.net, self.test, (), self.group).clean
        self.net.train()
        infinite = math.isinf(self.net.p)
        with self.net.at_infinity() if infinite else means_at_infinity(self.net, self._mean_batches):
            result = accuracies(self.net, self.test, self.recipe.evaluation.eps, self.group)
        certified = {format_epsilon(eps): share for eps, share in result.certified.items()}
        return {"accuracy_at_p": at_p, "clean": result.clean, "certified": certified}

    def _mean_batches(self) -> Iterator[Tensor]:
        batches = pixel_batches(self.images.first(MEAN_IMAGES), self.batch)
        return (batch[self.group.share(len(batch))] for batch in batches)

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
                accuracies(self.net, self.test, epsilons, self.group),
                accuracies(self.net, self.images, epsilons, self.group, threshold=self.threshold),
                epochs=self.recipe.schedule.phases().total,
                seconds=round(self.progress.seconds, 1),
                seed=self.recipe.run.seed,
                parameters=count_parameters(self.net),
                device=self.device.type,
                processes=self.group.size,
            )
        if self._output:
            self.net.save(self._output.path, class_names=self.images.info.classes, results=Results(result))
            self._output.log("finish", step=self.progress.step, seconds=round(self.progress.seconds, 3))
            write_training(self._output.path, result)  # written last: this file marks the run as finished
        self.group.any(False)  # all processes wait until the model is written
        return result


Display = Callable[[Trainer], contextlib.AbstractContextManager[Watcher]]
"""A function that returns a context manager with an observer of a run."""


def start_run(
    recipe: Recipe, out: Path, device: torch.device, group: Group = ALONE, *, display: Display | None = None
) -> RunFolder:
    """Train a net by a recipe in a new or empty folder; nothing is written before the net has been built."""
    folder = RunFolder.new(out, recipe) if group.first else RunFolder(out, recipe)
    try:
        _train(folder, device, group, display, resume=False)
    finally:
        folder.release()
    return folder


def resume_run(
    folder: RunFolder, device: torch.device, group: Group = ALONE, *, display: Display | None = None
) -> bool:
    """Resume a run from its newest valid checkpoint; return False if it has already finished with a valid model.

    The observer first receives a `resume` event with the step and the errors of invalid checkpoints.
    """
    try:
        if group.first:
            folder.lock()  # lock before the check, so that no other process finishes the run in between
        if group.from_first(lambda: folder.finished and not cut_short(folder.path / "model.safetensors")):
            return False
        _train(folder, device, group, display, resume=True)
        return True
    finally:
        folder.release()


def _train(folder: RunFolder, device: torch.device, group: Group, display: Display | None, *, resume: bool) -> None:
    images, test = (load(folder.recipe.data.name, split) for split in ("train", "test"))
    trainer = Trainer(folder.recipe, images, test, device, folder=folder, group=group)
    errors = trainer.resume() if resume else []
    if group.first and not resume:
        folder.create()
    with display(trainer) if display else contextlib.nullcontext() as watcher:
        if watcher and resume:
            watcher.event({"event": "resume", "step": trainer.progress.step, "errors": errors})
        trainer.run(watcher)
