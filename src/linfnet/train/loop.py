"""The training loop."""

import contextlib
import hashlib
import math
import time
from collections.abc import Generator
from functools import partial
from threading import Event

import torch
from torch import Tensor, nn

from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, GradientSum, Group
from linfnet.errors import LinfnetError
from linfnet.nn import Classifier, count_parameters, means_at_infinity, reestimate_means, share_means
from linfnet.ops import training_in_float16
from linfnet.recipes import Recipe, recipe_to_toml
from linfnet.results import TrainingResult, write_training
from linfnet.schedules import StepState
from linfnet.systems import check_built, system_of
from linfnet.train.batches import Batches, check_batches
from linfnet.train.callbacks import Callbacks, TrainingRun, as_callbacks
from linfnet.train.checkpoint import (
    Progress,
    StoppedError,
    Stopwatch,
    load_newest,
    prune_checkpoints,
    save_checkpoint,
    stop_on_signals,
)
from linfnet.train.cuda_graphs import STEPS_TO_PAY_OFF
from linfnet.train.history import EpochEvent, History, TestEvent
from linfnet.train.metrics import RECORD_COLUMNS, accuracies, record_step, summarise
from linfnet.train.objective import Objective
from linfnet.train.optimizer import build_optimizer, decay_others, decay_weights, step_state
from linfnet.train.own_net import write_net
from linfnet.train.run_folder import RunFolder


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
        self.batches = Batches(self.images, recipe, group)
        self.steps_per_epoch = len(self.batches.sizes)
        self.total_steps = self.steps_per_epoch * recipe.schedule.phases().total
        self.state_at = partial(step_state, recipe, steps_per_epoch=self.steps_per_epoch)
        system = system_of(recipe)
        torch.manual_seed(recipe.run.seed)
        try:
            self.net = (system.build(recipe, images.info) if net is None else net).to(device)
        except RuntimeError as error:
            raise LinfnetError(f"the net cannot be built: {str(error).splitlines()[0]}") from None
        if net is None:
            check_built(recipe, self.net)
        check_batches(self.batches, self.net)
        share_means(self.net, group)
        group.spread_(self.net.state_dict().values())
        self.objective = Objective(recipe, system, self.net)
        if recipe.run.graphs and device.type == "cuda" and group.size == 1:
            self.objective.use_graphs(max(self.batches.sizes), self._later)
        self.optimizer = build_optimizer(recipe, self.net)
        self.gradients = GradientSum(group, self.net.parameters())
        # Nets without a Lipschitz constant have no theta: for them, only the sign of each margin is counted.
        self.threshold = recipe.loss.threshold(self.net.lipschitz or 0.0)
        self.record = torch.zeros(self.steps_per_epoch, RECORD_COLUMNS, device=device)
        self.recipe_digest = hashlib.sha256(recipe_to_toml(recipe).encode()).hexdigest()
        self.progress = Progress()
        self.saved_at = time.monotonic()
        self.finished = False
        lengths, path = (self.steps_per_epoch, self.total_steps), folder.path if folder else None
        used = self.images, self.test
        self.view = TrainingRun(recipe, self.net, *lengths, self.state_at(0), *used, path, group.first)

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
        signals = stop_on_signals() if self.folder else contextlib.nullcontext(Event())
        with self._called(), training_in_float16(bool(settings.float16)), signals as stop:
            if self.progress.step < self.total_steps and self.group.any(self.view.stopping):
                return self._result()  # no checkpoint: nothing has changed since the last one
            while self.progress.step < self.total_steps:
                if not self._epoch(stop):
                    return self._result()
                last = self.progress.step == self.total_steps
                if self.test is not None and (last or self._is_due(settings.test_every)):
                    self._log(self._test(self.test))
                if last or self._is_overdue() or self._is_due(settings.checkpoint_every):
                    self._save()
                if not last and self._stops(stop):
                    return self._result()
            return self._finish()

    def _epoch(self, stop: Event) -> bool:
        """Train from the current step to the end of its epoch; return False if a callback has stopped the run."""
        epoch, done = divmod(self.progress.step, self.steps_per_epoch)
        first_step = self.progress.step - done
        watch = Stopwatch(self.progress)
        for row, (pixels, labels) in enumerate(self.batches.epoch(epoch, done), done):
            self.view.state = self._step(row, pixels, labels)
            self.progress.step += 1
            watch.update()
            self.view.step = self.progress.step
            if self.device.type == "cpu":
                self._summarise(row, first_step)
            for callback in self.callbacks:
                callback.on_step(self.view)
            if row + 1 == self.steps_per_epoch:
                break  # `run` saves and stops between two epochs
            stopping = self.group.any(stop.is_set() or self.view.stopping)
            if stopping or (self.recipe.run.checkpoint_minutes and self._is_overdue()):
                self._summarise(row, first_step)
                if stopping and self._stops(stop):
                    return False
                watch.update()
                self._save()
                watch = Stopwatch(self.progress)  # do not count the time for writing as training time
        self._summarise(self.steps_per_epoch - 1, first_step)
        watch.update()
        state, scale = self.view.state, self.net.scale.item()
        self._log(EpochEvent(*self._time(), state.p, state.mixing, state.lr, scale, **self.view.metrics))
        return True

    def _step(self, row: int, pixels: Tensor, labels: Tensor) -> StepState:
        """Perform one training step; `row` is its index in the epoch."""
        state = self.state_at(self.progress.step)
        self.net.p, self.net.slopes_p = state.p, state.slopes_p
        self.optimizer.param_groups[0]["lr"] = state.lr
        self.optimizer.param_groups[1]["lr"] = state.lr * self.recipe.optimizer.scale_lr_factor
        self.optimizer.zero_grad()
        share = len(labels) / self.batches.sizes[row]  # the sum over all processes is the batch mean
        loss, logits = self.objective.backward(pixels, labels, state, share)
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

    def _test(self, test: ImageSet) -> TestEvent:
        """Compute the test accuracy at the current p, and the clean and certified test accuracy at p = inf."""
        self.net.eval()
        at_p = accuracies(self.net, test, (), self.group).clean
        self.net.train()
        estimated = math.isinf(self.net.p) and not self.net.drops_inputs
        with self.net.at_infinity() if estimated else means_at_infinity(self.net, self.batches.for_means):
            result = accuracies(self.net, test, self.recipe.evaluation.eps, self.group)
        return TestEvent(*self._time(), at_p, result.clean, result.certified)

    def _result(self) -> TrainingResult:
        """Change the net to p = inf in eval mode, with means estimated there, and compute its accuracies."""
        if self.net.drops_inputs:  # its means are those of the whole augmented training set
            epochs = self.recipe.schedule.phases().total
            reestimate_means(self.net, (pixels for pixels, _ in self.batches.epoch(epochs)))
        elif not math.isinf(self.net.p):
            reestimate_means(self.net, self.batches.for_means())
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
            cpu_seconds=None if self.progress.cpu_seconds is None else round(self.progress.cpu_seconds, 1),
        )

    def _finish(self) -> TrainingResult:
        """Evaluate the net at p = inf, and write the model folder."""
        result = self._result()
        if self._output:
            with self._output.guarded():
                write_net(self._output.path, self.net, self.images.class_names, result)
                self._output.log("finish", step=self.progress.step, seconds=round(self.progress.seconds, 3))
                write_training(self._output.path, result)  # written last: this file marks the run as finished
        self.group.any(False)  # all processes wait until the model is written
        self.finished = True
        return result

    @contextlib.contextmanager
    def _called(self) -> Generator[None]:
        """Context between `on_start` and `on_finish` of all callbacks."""
        with contextlib.ExitStack() as stack:
            for callback in self.callbacks:
                callback.on_start(self.view)
                stack.callback(callback.on_finish, self.view)
            yield

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

    def _is_due(self, every: int) -> bool:
        """Return whether the number of finished epochs is a multiple of `every`; 0 means never."""
        return every > 0 and self.view.epoch % every == 0

    def _is_overdue(self) -> bool:
        """Return whether the last checkpoint is older than `run.checkpoint_minutes`."""
        return time.monotonic() - self.saved_at > 60 * self.recipe.run.checkpoint_minutes

    def _summarise(self, row: int, first_step: int) -> None:
        """Compute the metrics of the steps of an epoch up to a row."""
        part = slice(row + 1)
        sizes = torch.tensor(self.batches.sizes[part], dtype=torch.float64)
        self.view.metrics = summarise(self.record[part], sizes, first_step, self.state_at)

    def _time(self) -> tuple[int, int, float]:
        """Return the finished epochs and steps, and the seconds."""
        return self.view.epoch, self.progress.step, round(self.progress.seconds, 3)

    def _later(self) -> StepState:
        """Return the state of the schedule at which a CUDA graph that is captured now pays off."""
        return self.state_at(min(self.progress.step + STEPS_TO_PAY_OFF, self.total_steps - 1))
