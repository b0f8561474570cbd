"""The training loop."""

import contextlib
import hashlib
import math
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from threading import Event

import torch
from torch import Tensor, nn

from linfnet.data import ImageSet, augment, plan_epoch, plan_maps, warp
from linfnet.distributed.group import ALONE, GradientSum, Group
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import write_tensors
from linfnet.nn import Classifier, count_parameters, means_at_infinity, reestimate_means, share_means
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.results import Results, TrainingResult, write_training
from linfnet.schedules import StepState
from linfnet.systems import SYSTEMS, FeatureModule, FeatureSystem, LossModule, WeightedSystem, system_of
from linfnet.train.callbacks import Callbacks, TrainingRun, as_callbacks
from linfnet.train.checkpoint import (
    Progress,
    StoppedError,
    load_newest,
    prune_checkpoints,
    save_checkpoint,
    stop_on_signals,
)
from linfnet.train.cuda_graphs import STEPS_TO_PAY_OFF, GraphedLoss, GraphedModule
from linfnet.train.history import EpochEvent, History, TestEvent
from linfnet.train.metrics import RECORD_COLUMNS, accuracies, pixel_batches, record_step, summarise
from linfnet.train.optimizer import build_optimizer, decay_others, decay_weights, step_state
from linfnet.train.run_folder import RunFolder

# Number of training images from which running means are re-estimated before a test at p = inf.
MEAN_IMAGES = 8192


class Trainer:
    """A training run: the net, its optimizer and its progress.

    The first process writes checkpoints, events, the model and its results into the folder, if there is one. The
    processes of a group share each batch. Up to rounding, they train the same net as a single process.

    Args:
        recipe: the settings.
        images: the training images.
        test: the test images; None trains without tests.
        device: where the net is trained.
        net: the net to train, in place; None builds the net of the recipe.
        folder: the run folder.
        group: the processes that share the work.
        callbacks: see `linfnet.train.Callback`.
    """

    def __init__(
        self,
        recipe: Recipe,
        images: ImageSet,
        test: ImageSet | None,
        device: torch.device,
        *,
        net: Classifier | None = None,
        folder: RunFolder | None = None,
        group: Group = ALONE,
        callbacks: Callbacks = (),
    ) -> None:
        self.recipe, self.device, self.folder, self.group = recipe, device, folder, group
        self._output = folder if group.first else None
        self.callbacks = as_callbacks(callbacks)
        self.images = images.first(recipe.data.limit or None).to(device)
        self.test = None if test is None else test.to(device)
        self.batch = recipe.optimizer.batch
        self.steps_per_epoch = math.ceil(len(self.images) / self.batch)
        self.total_steps = self.steps_per_epoch * recipe.schedule.phases().total
        self.state_at = partial(step_state, recipe, steps_per_epoch=self.steps_per_epoch)
        self.system = system_of(recipe)
        torch.manual_seed(recipe.run.seed)
        try:
            self.net = (self.system.build(recipe, images.info) if net is None else net).to(device)
        except RuntimeError as error:
            raise LinfnetError(f"the net cannot be built: {str(error).splitlines()[0]}") from None
        self.recipe_digest = hashlib.sha256(recipe_to_toml(recipe).encode()).hexdigest()
        self.optimizer = build_optimizer(recipe, self.net)
        # Nets without a Lipschitz constant have no theta: for them, only the sign of each margin is counted.
        self.threshold = recipe.loss.threshold(self.net.lipschitz or 0.0)
        self.record = torch.zeros(self.steps_per_epoch, RECORD_COLUMNS, device=device)
        sizes = [min(self.batch, len(self.images) - start) for start in range(0, len(self.images), self.batch)]
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        batch_norm = any(isinstance(each, nn.BatchNorm1d | nn.BatchNorm2d) for each in self.net.modules())
        if group.size > 1 and (batch_norm or self.system.needs_whole_batch):
            reason = f"system {recipe.system_name!r}" if self.system.needs_whole_batch else "batch norm"
            raise ArgumentError(
                f"the run has {group.size} processes, but {reason} needs all images of a batch in one; start a single "
                "process, without torchrun"
            )
        if min(sizes) < (2 if batch_norm else group.size):
            raise ArgumentError(
                f"optimizer.batch is {self.batch}: it leaves a last batch of {min(sizes)} images, "
                f"too few for {f'{group.size} processes' if group.size > 1 else 'batch norm'}"
            )
        self.gradients = GradientSum(group, self.net.parameters())
        self.graphed: GraphedModule | None = None
        self.graphed_loss: GraphedLoss | None = None
        if recipe.run.graphs and device.type == "cuda" and group.size == 1:
            if isinstance(self.system, FeatureSystem):
                module = FeatureModule(self.system, self.net)
                self.graphed = GraphedModule(module, max(sizes), self._exponents, self._exponents_stay)
            elif isinstance(self.system, WeightedSystem) and type(self.system).loss is WeightedSystem.loss:
                self.graphed_loss = GraphedLoss(LossModule(self.system, self.net), max(sizes))
        share_means(self.net, group)
        group.spread_(self.net.state_dict().values())
        self.progress = Progress()
        self.saved_at = time.monotonic()
        self.finished = False
        sizes_of_run = (self.steps_per_epoch, self.total_steps)
        path = folder.path if folder else None
        self.view = TrainingRun(recipe, self.net, *sizes_of_run, self.state_at(0), path, group.first)

    def resume(self) -> list[str]:
        """Load the newest valid checkpoint of the folder; return an error message for each newer, invalid one."""
        assert self.folder is not None
        state = (self.net, self.optimizer, self.record)
        self.progress, errors = load_newest(self.folder.checkpoints, *state, self.recipe_digest, self.group)
        if self.progress.step:
            self.view.state = self.state_at(self.progress.step - 1)
            self.net.p = self.view.state.p
        if self._output:
            self._output.rewind(self.progress.step)
            prune_checkpoints(self._output.checkpoints, self.progress.step, self.recipe.run.keep_checkpoints)
            self.view.history = History.from_json(self._output.events())
        self.view.step, self.view.resumed, self.view.skipped = self.progress.step, True, tuple(errors)
        return errors

    def run(self) -> TrainingResult:
        """Train to the end of the schedule and write the model, or until a callback stops the run (see `finished`)."""
        settings = self.recipe.run
        self.net.train()
        with self._called(), stop_on_signals() if self.folder else contextlib.nullcontext(Event()) as stop:
            if self.progress.step < self.total_steps and self.group.any(self.view.stopping):
                return self._result()  # no checkpoint: nothing has changed since the last one
            while self.progress.step < self.total_steps:
                if not self._epoch(stop):
                    return self._result()
                epoch = self.progress.step // self.steps_per_epoch
                last = self.progress.step == self.total_steps
                if self.test is not None and (last or (settings.test_every and epoch % settings.test_every == 0)):
                    self._log(self._test(self.test))
                old = time.monotonic() - self.saved_at > 60 * settings.checkpoint_minutes
                if last or old or (settings.checkpoint_every and epoch % settings.checkpoint_every == 0):
                    self._save()
                if not last and self._stops(stop):
                    return self._result()
            return self._finish()

    @contextlib.contextmanager
    def _called(self) -> Generator[None]:
        """Context between `on_start` and `on_finish` of all callbacks."""
        with contextlib.ExitStack() as stack:
            for callback in self.callbacks:
                callback.on_start(self.view)
                stack.callback(callback.on_finish, self.view)
            yield

    def _epoch(self, stop: Event) -> bool:
        """Train from the current step to the end of its epoch; return False if a callback has stopped the run."""
        epoch, done = divmod(self.progress.step, self.steps_per_epoch)
        first_step = self.progress.step - done
        start = time.perf_counter() - self.progress.seconds
        for row, (pixels, labels) in enumerate(self._batches(epoch, done), done):
            self.view.state = self._step(row, pixels, labels)
            self.progress.step += 1
            self.progress.seconds = time.perf_counter() - start
            self.view.step = self.progress.step
            if self.device.type == "cpu":
                self._summarise(row, first_step)
            for callback in self.callbacks:
                callback.on_step(self.view)
            if row + 1 == self.steps_per_epoch:
                break  # `run` saves and stops between two epochs
            stopping = self.group.any(stop.is_set() or self.view.stopping)
            if stopping or 0 < 60 * self.recipe.run.checkpoint_minutes < time.monotonic() - self.saved_at:
                self._summarise(row, first_step)
                begin = time.perf_counter()
                if stopping and self._stops(stop):
                    return False
                self._save()
                start += time.perf_counter() - begin  # do not count the time for writing as training time
        self._summarise(self.steps_per_epoch - 1, first_step)
        self.progress.seconds = time.perf_counter() - start
        state, scale = self.view.state, self.net.scale.item()
        self._log(EpochEvent(*self._time(), state.p, state.mixing, state.lr, scale, **self.view.metrics))
        return True

    def _summarise(self, row: int, first_step: int) -> None:
        """Compute the metrics of the steps of an epoch up to a row."""
        part = slice(row + 1)
        self.view.metrics = summarise(self.record[part], self.sizes[part], first_step, self.state_at)

    def _time(self) -> tuple[int, int, float]:
        """Return the finished epochs and steps, and the seconds."""
        return self.view.epoch, self.progress.step, round(self.progress.seconds, 3)

    def _batches(self, epoch: int, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's part of each batch after the first `done` ones: pixels [B, C, H, W] and labels [B]."""
        data = self.recipe.data
        plan = plan_epoch(len(self.images), self.recipe.run.seed, epoch, pad=data.pad, flip=data.flip).to(self.device)
        chance = {"rotate": data.rotate or 0.0, "zoom": data.zoom or 0.0}
        warped = any(chance.values()) and self.images.images.dim() == 4
        maps = plan_maps(len(self.images), self.recipe.run.seed, epoch, **chance).to(self.device) if warped else None
        for start in range(done * self.batch, len(self.images), self.batch):
            mine = self.group.share(min(self.batch, len(self.images) - start))
            part = slice(start + mine.start, start + mine.stop)
            index = plan.order[part]
            images = self.images.images[index]
            if images.dim() == 4:  # vectors are not augmented
                images = augment(images, plan.top[part], plan.left[part], plan.flip[part], data.pad)
            pixels = self.images.as_pixels(images)
            yield (pixels if maps is None else warp(pixels, maps[part])), self.images.labels[index]

    def _step(self, row: int, pixels: Tensor, labels: Tensor) -> StepState:
        """Perform one training step; `row` is its index in the epoch."""
        state = self.state_at(self.progress.step)
        self.net.p, self.net.slopes_p = state.p, state.slopes_p
        self.optimizer.param_groups[0]["lr"] = state.lr
        self.optimizer.param_groups[1]["lr"] = state.lr * self.recipe.optimizer.scale_lr_factor
        self.optimizer.zero_grad()
        if self.graphed_loss and isinstance(self.system, WeightedSystem):  # on a GPU
            loss, logits = self.graphed_loss(pixels, labels, self.system.weights(state))
        else:
            loss, logits = self._loss(pixels, labels, state)
            if self.group.size > 1:
                loss = loss * (len(labels) / self.sizes[row].item())  # the sum over all processes is the batch mean
            loss.backward()
        self.gradients.wait()
        if self.recipe.optimizer.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.recipe.optimizer.clip)
        decay = self.recipe.optimizer.scale_decay
        decay_others(self.net, state.lr * decay, self.optimizer.param_groups[1]["lr"] * decay)
        decay_weights(self.net, state.lr * self.recipe.optimizer.weight_decay)
        self.optimizer.step()
        record_step(self.record, row, loss.detach(), logits.detach(), labels, self.threshold)
        self.group.sum_(self.record[row])
        return state

    def _loss(self, pixels: Tensor, labels: Tensor, state: StepState) -> tuple[Tensor, Tensor]:
        if self.graphed and isinstance(self.system, FeatureSystem):  # on a GPU
            return self.system.loss_from_features(self.recipe, self.net, self.graphed(pixels), labels, state)
        return self.system.loss(self.recipe, self.net, pixels, labels, state)

    def _exponents(self) -> tuple[float, float]:
        return self.net.p, self.net.slopes_p

    def _exponents_stay(self) -> bool:
        later = self.state_at(min(self.progress.step + STEPS_TO_PAY_OFF, self.total_steps - 1))
        return (later.p, later.slopes_p) == self._exponents()

    def _test(self, test: ImageSet) -> TestEvent:
        """Compute the test accuracy at the current p, and the clean and certified test accuracy at p = inf."""
        self.net.eval()
        at_p = accuracies(self.net, test, (), self.group).clean
        self.net.train()
        estimated = math.isinf(self.net.p) and not self.net.drops_inputs
        with self.net.at_infinity() if estimated else means_at_infinity(self.net, self._mean_batches):
            result = accuracies(self.net, test, self.recipe.evaluation.eps, self.group)
        return TestEvent(*self._time(), at_p, result.clean, result.certified)

    def _mean_batches(self) -> Iterator[Tensor]:
        batches = pixel_batches(self.images.first(MEAN_IMAGES), self.batch)
        return (batch[self.group.share(len(batch))] for batch in batches)

    def _log(self, event: EpochEvent | TestEvent) -> None:
        """Write an event to the log, add it to the history, and call the callbacks."""
        kind = "epoch" if isinstance(event, EpochEvent) else "test"
        if self._output:
            with self._output.guarded():
                self._output.log(kind, **event.to_json())
        self.view.history.append(event)
        for callback in self.callbacks:
            (callback.on_epoch if kind == "epoch" else callback.on_test)(self.view)

    def _save(self) -> None:
        if self._output:
            keep = self.recipe.run.keep_checkpoints
            state = (self.net, self.optimizer, self.record, self.progress)
            with self._output.guarded():
                # A checkpoint must not be more durable than the events before it.
                log = self._output.log_digest()
                save_checkpoint(self._output.checkpoints, *state, recipe_digest=self.recipe_digest, log=log, keep=keep)
        self.saved_at = time.monotonic()

    def _stops(self, stop: Event) -> bool:
        """If the run stops now, write a checkpoint; return True after a callback, and raise after a signal."""
        if not self.group.any(stop.is_set() or self.view.stopping):
            return False
        self._save()
        if self.group.any(stop.is_set()):
            hint = f"; {self.folder.resume_hint}" if self.folder else ""
            raise StoppedError(f"stopped at step {self.progress.step} of {self.total_steps}{hint}")
        return True

    def _result(self) -> TrainingResult:
        """Change the net to p = inf in eval mode, with means estimated there, and compute its accuracies."""
        if self.net.drops_inputs:  # its means are those of the whole augmented training set
            epochs = self.recipe.schedule.phases().total
            reestimate_means(self.net, (pixels for pixels, _ in self._batches(epochs, 0)))
        elif not math.isinf(self.net.p):
            reestimate_means(self.net, self._mean_batches())
        self.net.p = self.net.slopes_p = math.inf
        self.net.eval()
        epsilons = self.recipe.evaluation.eps
        tested = None if self.test is None else accuracies(self.net, self.test, epsilons, self.group)
        held_out = self.recipe.data.hold_out is not None
        return TrainingResult(
            None if held_out else tested,
            accuracies(self.net, self.images, epsilons, self.group, threshold=self.threshold),
            epochs=self.view.epoch,
            seconds=round(self.progress.seconds, 1),
            seed=self.recipe.run.seed,
            parameters=count_parameters(self.net),
            device=self.device.type,
            processes=self.group.size,
            held_out=tested if held_out else None,
        )

    def _write_model(self, path: Path, result: TrainingResult) -> None:
        """Write the model folder, or only the weights if the net is of no system: its code cannot be saved."""
        system = getattr(self.net, "system", "")
        if system in SYSTEMS and isinstance(self.net, SYSTEMS[system].net_type):
            self.net.save(path, class_names=self.images.info.classes, results=Results(result))
        else:
            write_tensors(path / "model.safetensors", self.net.state_dict(), {"format": "pt"})

    def _finish(self) -> TrainingResult:
        """Evaluate the net at p = inf, and write the model folder."""
        result = self._result()
        if self._output:
            with self._output.guarded():
                self._write_model(self._output.path, result)
                self._output.log("finish", step=self.progress.step, seconds=round(self.progress.seconds, 3))
                write_training(self._output.path, result)  # written last: this file marks the run as finished
        self.group.any(False)  # all processes wait until the model is written
        self.finished = True
        return result
