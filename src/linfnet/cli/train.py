"""`linfnet train`, and the display of a run on the terminal and in TensorBoard."""

import contextlib
import math
import shlex
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from linfnet.cli.console import console, only_first_prints, percent, progress_lines
from linfnet.cli.inputs import (
    Changes,
    Device,
    Folder,
    Grey,
    Resize,
    Rgb,
    TrainingData,
    bad_files_error,
    parse_conversion,
)
from linfnet.data import BadFilesError, Conversion, named_or_path
from linfnet.distributed.device import choose_device
from linfnet.distributed.group import Group, joined, launched, restarted
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.nn import count_parameters
from linfnet.recipes import Recipe, change_recipe, load_recipe
from linfnet.recipes.io import split_change
from linfnet.results import read_results
from linfnet.systems import check_changes, has_effect
from linfnet.train import Callback, RunFolder, StoppedError, TrainingRun, fit, new_run_path


@dataclass(frozen=True)
class Train:
    """Train a net by a recipe and write a run folder, or resume a run.

    Examples:
        linfnet train digits --out runs/first
        linfnet train mnist-cpu --set model.width=128
        linfnet train digits --data photos --resize 28x28 --grey
        linfnet train --resume runs/first
    """

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")] = "digits"
    """The name of a recipe (`linfnet recipes` lists them) or a TOML file."""
    out: Folder = None
    """The run folder, new or empty. Default: runs/RECIPE-TIME."""
    set: Changes = ()
    """Change keys of the recipe, as in --set model.width=256 'schedule.epochs=[5, 40, 5]'. `linfnet recipes RECIPE`
    lists the keys."""
    data: TrainingData = None
    resize: Resize = None
    grey: Grey = False
    rgb: Rgb = False
    resume: Folder = None
    """Resume the run in this folder from its last checkpoint. A recipe, --out, --data and --set are not allowed."""
    device: Device = "auto"
    tensorboard: bool = False
    """Also write the curves for TensorBoard into RUN/tensorboard (needs the extra `tensorboard`)."""

    def run(self) -> int:
        """Train, then print the results and the run folder."""
        changes = tuple(change for changes in self.set for change in changes)
        conversion = self.resize is not None or self.grey or self.rgb
        if self.resume is not None and (
            changes or conversion or self.data or self.out is not None or self.recipe != "digits"
        ):
            raise ArgumentError(
                "--resume continues a run unchanged: a recipe, --out, --data and --set are not allowed with it"
            )
        if launched() and self.resume is None and self.out is None:
            raise ArgumentError("--out is required under torchrun: a restart resumes the run in that folder")
        if self.tensorboard:
            require("tensorboard", "tensorboard")
        device = choose_device(self.device, shared=True)
        with joined(device) as group, only_first_prints(group):
            try:
                path = self._train(changes, device, group)
            except StoppedError:
                if group.first:
                    raise
                return 130
            if group.first:
                self._report(path)
        return 0

    def _train(self, changes: tuple[str, ...], device: torch.device, group: Group) -> Path:
        """Start or resume a run, and return its folder. If torchrun restarts the processes, the run is resumed."""
        if self.resume is not None:
            path, recipe, resume = self.resume, None, True
        else:
            recipe = chosen = self._recipe(changes)
            path = self.out or new_run_path(recipe.name)
            resume = launched() and group.from_first(lambda: _has_run(path, chosen))
        if resume:
            stored, complete = group.from_first(lambda: _stored(path))
            if complete:
                if recipe is not None and restarted():
                    return path
                raise LinfnetError(f"{path} has finished; evaluate it with: linfnet evaluate {shlex.quote(str(path))}")
            if stored.data.in_memory:
                raise LinfnetError(f"{path} was trained on data from Python; resume it by linfnet.fit(…, resume=True)")
            recipe = stored
        assert recipe is not None
        callbacks = [TrainDisplay(), TensorBoard()] if self.tensorboard else [TrainDisplay()]
        try:
            fit(recipe, out=path, resume=resume, callbacks=callbacks, device=device, group=group)
        except BadFilesError as error:
            raise bad_files_error(error) from None
        return path

    def _recipe(self, changes: tuple[str, ...]) -> Recipe:
        """Return the recipe with all changes of the command line."""
        before, settings = load_recipe(self.recipe), dict[str, object](map(split_change, changes))
        if self.data is not None:
            name, path = named_or_path(self.data)
            settings |= {"data.path": path} if name is None else {"data.name": name}
        conversion = parse_conversion(self.resize, self.grey, self.rgb)
        if conversion != Conversion() and not (before.data.path or settings.keys() & {"path", "data.path"}):
            raise ArgumentError("--resize, --grey and --rgb convert image files only; give their path by --data")
        if conversion.resize is not None:
            settings["data.resize"] = conversion.resize
        if conversion.mode is not None:
            settings["data.mode"] = conversion.mode
        recipe = change_recipe(before, settings)
        check_changes(before, recipe)
        return recipe

    @staticmethod
    def _report(path: Path) -> None:
        result = read_results(path).training
        split = " --split held-out" if result is not None and result.held_out is not None else ""
        if result is not None and (tested := result.test or result.held_out) is not None:
            certified = {format_epsilon(eps): share for eps, share in tested.certified.items()}
            where = "" if result.test else ", on held-out training images"
            console.print(f"done in {result.seconds:.0f} s: {figures(tested.clean, certified)}{where}")
            if count := tested.never_predicted:
                # With the paper's loss, short runs do not learn all classes: docs/beyond.md.
                console.print(f"{count} {'class is' if count == 1 else 'classes are'} never predicted")
        console.print(f"run folder: {path}")
        console.print(f"next: linfnet evaluate {shlex.quote(str(path))}{split}")


def _stored(path: Path) -> tuple[Recipe, bool]:
    """Return the recipe of a run that no other process trains, and whether the run is complete."""
    folder = RunFolder.open(path)
    folder.lock()
    try:
        return folder.recipe, folder.complete
    finally:
        folder.release()


def _has_run(path: Path, recipe: Recipe) -> bool:
    """Return whether a folder has a run of that recipe; the run has also stored the name and a digest of its data."""
    if not (path / "recipe.toml").is_file():
        return False
    stored = RunFolder.open(path).recipe
    found = replace(stored.data, name=recipe.data.name, digest=recipe.data.digest)
    return replace(stored, data=found if recipe.data.path else stored.data) == recipe


@contextlib.contextmanager
def stop_if_terminal_closed() -> Generator[None]:
    """Stop the run if output can no longer be written (a closed terminal, a broken pipe)."""
    try:
        yield
    except (OSError, SystemExit):  # rich raises SystemExit for a broken pipe
        console.quiet = True
        signal.raise_signal(signal.SIGHUP)  # under nohup the signal is ignored, and the run continues


class TrainDisplay(Callback):
    """Shows a run: by a progress bar on a terminal, otherwise by `progress_lines`; each test is a line."""

    progress: Progress | None = None

    def on_start(self, run: TrainingRun) -> None:
        """Start the progress bar, and print the data and the net.

        If the run resumes, also print the step and the checkpoints that were skipped.
        """
        columns = (
            TextColumn("{task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        self.progress, self.shown = Progress(*columns, console=console, disable=not console.is_terminal), 0.0
        self.task = self.progress.add_task(
            "", total=run.total_steps, completed=run.step, epoch=1, epochs=run.epochs, numbers=""
        )
        self.progress.start()
        self.stack = contextlib.ExitStack()
        self.stack.callback(self.progress.stop)
        self.change = None if console.is_terminal else self.stack.enter_context(progress_lines())
        # A closed terminal stops the run at the next test: signals are not handled before the first step.
        with contextlib.suppress(OSError, SystemExit):
            console.print(_summary(run))
            if run.resumed:
                for error in run.skipped:
                    console.print(f"skipped: {error}")
                console.print(f"resuming at step {run.step} of {run.total_steps}")

    def on_step(self, run: TrainingRun) -> None:
        """Show the epoch and the metrics so far, at most ten times per second."""
        if time.monotonic() - self.shown < 0.1:
            return
        self.shown = time.monotonic()
        used = [key for key in ("schedule.p_start", "loss.mixing_start", "loss.theta") if has_effect(run.recipe, key)]
        shown = [f"p {run.p:.3g}"] if "schedule.p_start" in used else []
        shown += [f"λ {run.state.mixing:.0e}"] if "loss.mixing_start" in used else []
        if run.metrics:
            shown += [f"loss {run.metrics['loss']:.3f} acc {100 * run.metrics['accuracy']:.1f}"]
            shown += [f">θ {100 * run.metrics['above']:.1f}"] if "loss.theta" in used else []
        numbers = " ".join(shown)
        epoch = min(run.epoch + 1, run.epochs)
        self._update(completed=run.step, epoch=epoch, numbers=numbers)
        if self.change is not None:
            self.change(f"epoch {epoch:>4}/{run.epochs}  {numbers}")

    def on_epoch(self, run: TrainingRun) -> None:
        """Redraw the progress bar."""
        with stop_if_terminal_closed():
            self._update(completed=run.step)

    def on_test(self, run: TrainingRun) -> None:
        """Print a line."""
        test = run.history.tests[-1]
        certified = {format_epsilon(eps): share for eps, share in test.certified.items()}
        tested = "test" if run.recipe.data.hold_out is None else "held-out images"
        has_p = has_effect(run.recipe, "schedule.p_start") and math.isfinite(run.p)
        at_p = f"{percent(test.accuracy_at_p)} at p = {run.p:.3g}; at p = ∞ " if has_p else ""
        with stop_if_terminal_closed():
            console.print(
                f"epoch {test.epoch:>4}/{run.epochs}  {tested}: {at_p}{figures(test.clean, certified)}  "
                f"({test.seconds:.0f} s)"
            )

    def on_finish(self, run: TrainingRun) -> None:
        """Remove the progress bar."""
        with contextlib.suppress(OSError):  # the terminal may be closed
            self.stack.close()

    def _update(self, **values: Any) -> None:
        if self.progress is not None:
            self.progress.update(self.task, **values)


def figures(clean: float, certified: dict[str, float]) -> str:
    """Format clean and certified accuracy in percent, in one line."""
    shares = {"clean": clean, **{f"certified@{eps}": share for eps, share in certified.items()}}
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def _summary(run: TrainingRun) -> str:
    """Describe the data, the net and the device in one line."""
    tested = "test" if run.recipe.data.hold_out is None else "held-out"
    count = f" and {len(run.test):,} {tested}" if run.test is not None else ""
    shape, classes = "x".join(map(str, run.train.info.image_shape)), run.train.class_names
    names = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
    images = f"{run.recipe.data.name}: {len(run.train):,} training{count} images of {shape}"
    net = f"{run.recipe.system_name}, {count_parameters(run.net):,} parameters"
    return f"{images}, {len(classes)} classes ({names}); {net}; {run.train.images.device}"


class TensorBoard(Callback):
    """Writes the numbers of each epoch and test to the folder `tensorboard` of the run."""

    writer: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Open the log. A resumed run repeats the steps after its checkpoint: their old values are removed."""
        from torch.utils.tensorboard.writer import SummaryWriter

        if run.folder is not None and run.first:
            purge = run.step + 1 if run.step else None
            self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

    def on_epoch(self, run: TrainingRun) -> None:
        """Write the metrics of the epoch."""
        self._write("epoch", run.history.epochs[-1].to_json())

    def on_test(self, run: TrainingRun) -> None:
        """Write the accuracies."""
        self._write("test", run.history.tests[-1].to_json())

    def on_finish(self, run: TrainingRun) -> None:
        """Close the log."""
        if self.writer is not None:
            self.writer.close()

    def _write(self, kind: str, event: dict[str, Any]) -> None:
        """Write each number as KIND/NAME at its step, for example epoch/loss or test/certified 8/255."""
        if self.writer is None:
            return
        for key, value in event.items():
            named = {f"{key} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
            for name, number in named.items():
                if name != "step" and isinstance(number, int | float):
                    self.writer.add_scalar(f"{kind}/{name}", number, event["step"])
        self.writer.flush()
