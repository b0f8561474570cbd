"""Train a net by a recipe: from Python, and as the function behind `linfnet train`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import torch

from linfnet.data import (
    ImageSet,
    as_image_set,
    content_digest,
    is_known,
    load,
    load_path,
    load_split,
    named_or_path,
    own_name,
)
from linfnet.distributed.device import Device, choose_device
from linfnet.distributed.group import ALONE, Group
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.files import read_tensors
from linfnet.inputs import check_net
from linfnet.nn import Classifier, load_weights
from linfnet.recipes import Recipe, change_recipe, load_recipe
from linfnet.recipes.io import toml_literal
from linfnet.recipes.recipe import Reported
from linfnet.results import TrainingResult, read_results
from linfnet.systems import check_changes, load_model, system_of
from linfnet.train.callbacks import Callbacks, as_callbacks
from linfnet.train.history import History
from linfnet.train.loop import Trainer
from linfnet.train.own_net import check_same_net, describe_net
from linfnet.train.run_folder import RunFolder


@dataclass(frozen=True)
class Fitted:
    """A trained net."""

    net: Classifier
    """The net in eval mode at p = inf."""
    history: History
    """All epochs and tests of the run; `history.epochs` and `history.tests` separate them."""
    result: TrainingResult
    """The accuracies at the end (certified ones in real arithmetic), and the cost of training."""
    recipe: Recipe
    """All settings of the run, with the changes of `settings` and the description of the data."""
    folder: Path | None = None
    """The run folder; None if nothing was written."""
    finished: bool = True
    """Whether the schedule was completed; False if a callback stopped the run."""

    def __repr__(self) -> str:
        test = self.result.test
        measured = f", test accuracy {test.clean:.4f}" if test else ""
        return f"Fitted({self.recipe.title!r}, {self.result.epochs} epochs{measured}, finished={self.finished})"


def fit(
    recipe: Recipe | str | Path,
    train: object = None,
    test: object = None,
    *,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    callbacks: Callbacks = (),
    net: Classifier | None = None,
    device: Device = None,
    seed: int | None = None,
    group: Group = ALONE,
) -> Fitted:
    """Train a net by a recipe.

    The image shape and the classes come from the training data. Its mean and standard deviation are stored with the
    net, which normalises its inputs itself.

    Args:
        recipe: the name of a recipe (`linfnet recipes` lists them), a TOML file, or a `Recipe`.
        train: the training data: anything that `linfnet.data.as_image_set` takes, such as a pair (images, labels), a
            `Dataset` or a `DataLoader`; or the name of a known data set or a path (see `linfnet.data.load_path`). None
            takes the data of the recipe.
        test: the test data, likewise. None trains without tests, unless the training data is a known data set or a
            path: these have a test split.
        settings: changes of the recipe, with the keys of `--set`: `{"model.width": 256, "theta": "48/255"}`.
        out: a new or empty folder for the run: recipe, log, checkpoints, model and results. None writes nothing.
        resume: resume the run in `out` from its last checkpoint, with the same data and settings; it ends with the same
            weights as an uninterrupted run. If `out` has no run, a new run starts.
        callbacks: callbacks, or functions that are called with the run after each epoch (see `linfnet.Callback`).
        net: a net to train in place, for example from `Classifier.wrap`, instead of the net of the recipe. `[model]`
            then has no effect. If the net is of no registered system, `out` gets its weights but no model folder.
        device: `cpu`, `cuda` or `cuda:INDEX`; None selects a GPU if there is one.
        seed: of the initial weights and the order of the images; short for the setting `run.seed`.
        group: the processes that share the work, under torchrun.

    >>> from linfnet.data import load
    >>> images = load("digits").first(200)
    >>> fitted = fit("digits", images, settings={"width": 16, "epochs": [1, 1, 1]})
    >>> fitted.net.image_shape, len(fitted.history.epochs), fitted.result.test
    ((1, 8, 8), 3, None)
    """
    called = as_callbacks(callbacks)
    changes = _changes(settings, train, seed)
    train = None if isinstance(train, str | Path) else train
    net = None if net is None else check_net(net)
    chosen = _choose(recipe, changes, net)
    place = choose_device(device)
    if resume and out is None:
        raise ArgumentError("resume is True, but out is not given; expected the run folder")
    folder, resumed = _open(chosen, None if out is None else Path(out), resume, group)
    try:
        described, images, tested = _load(chosen, train, test, net)
        if described.data.hold_out is not None:
            images, tested = images.hold_out(described.data.hold_out)
        if net is not None:
            images, tested = _for_net(net, described, images, tested)
            title = described.title.removesuffix(", own net")
            described = replace(described, title=f"{title}, own net", reported=Reported())
        described = replace(described, title=chosen.title) if "title" in changes else described
        if folder is not None:
            if resumed:
                _check_same(folder, described)
                check_same_net(folder.path, group.from_first(lambda: folder.own_net), net)
                if group.first:
                    folder.lock()  # lock before the check, so that no other process finishes the run in between
                if group.from_first(lambda: folder.complete):
                    return _trained(folder, net, place)
                described = folder.recipe
            folder.recipe = described
        # The seed of the run must not change the random numbers of the user's program.
        with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
            trainer = Trainer(described, images, tested, place, net=net, folder=folder, group=group, callbacks=called)
            if resumed:
                trainer.resume()
            elif folder is not None and group.first:
                folder.create({} if net is None else {"net": describe_net(net)})
            result = trainer.run()
    finally:
        if folder is not None:
            folder.release()
    written = folder.path if folder else None
    return Fitted(trainer.net, trainer.view.history, result, described, written, trainer.finished)


def _changes(settings: object, train: object, seed: int | None) -> dict[str, Any]:
    """Return the changes of the recipe: the settings of the user, the name or the path of the data, and the seed."""
    if settings is not None and not isinstance(settings, Mapping):
        kind = type(settings).__name__
        raise ArgumentError(f'settings is a {kind}; expected a mapping such as {{"model.width": 64}}')
    changes = dict[str, Any]()
    for key, value in cast(Mapping[object, Any], settings or {}).items():
        if not isinstance(key, str):
            raise ArgumentError(f"settings has the key {key!r}; expected texts such as 'model.width'")
        changes[key] = value
    if isinstance(train, str | Path):
        name, path = named_or_path(train)
        changes |= {"data.path": path} if name is None else {"data.name": name}
    return changes if seed is None else {**changes, "run.seed": seed}


def _choose(recipe: Recipe | str | Path, changes: Mapping[str, Any], net: Classifier | None) -> Recipe:
    """Return the recipe with all changes; raise an error if a change has no effect."""
    before = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    chosen = change_recipe(before, changes)
    if changes:
        check_changes(before, chosen)
    system_of(chosen)  # raises an error for unknown keys of [system]
    if net is not None and chosen.model != before.model:
        raise ArgumentError("settings change [model], which has no effect if net is given")
    return chosen


def _open(chosen: Recipe, out: Path | None, resume: bool, group: Group) -> tuple[RunFolder | None, bool]:
    """Return the run folder, and whether the run in it is resumed; nothing is written."""
    if out is None:
        return None, False
    if resume and group.from_first(lambda: (out / "recipe.toml").exists()):
        return RunFolder(out, group.from_first(lambda: RunFolder.open(out).recipe)), True
    return (RunFolder.new(out, chosen) if group.first else RunFolder(out, chosen)), False


def _load(
    chosen: Recipe, train: object, test: object, net: Classifier | None
) -> tuple[Recipe, ImageSet, ImageSet | None]:
    """Return the data, and the recipe with a description of the data."""
    if test is not None and chosen.data.hold_out is not None:
        raise ArgumentError(f"data.hold_out is {chosen.data.hold_out}, but test is given; expected one of them")
    if train is None:
        if chosen.data.in_memory:
            raise ArgumentError(f"train is None; expected the data {chosen.data.name!r}, which was passed from Python")
        images, own_test = load_split(chosen.data, "train"), test is None
        tested = _own_test(chosen) if own_test else _test_set(test, chosen, images)
        if chosen.data.path is None and own_test:
            return chosen, images, tested
        path = None if chosen.data.path is None or not own_test else Path(chosen.data.path).expanduser().resolve()
    else:
        classes = None if net is None or isinstance(train, ImageSet) else net.classes
        images, path = as_image_set(train, classes=classes, name="own", split="train"), None
        tested = None if test is None else _test_set(test, chosen, images)
    if path is None and is_known(images, "train") and (tested is None or is_known(tested, "test")):
        return change_recipe(chosen, {"data.name": images.info.name}), images, tested
    name, digest = own_name(images.info.name), content_digest(images)
    if path is not None:
        data = replace(chosen.data, path=str(path), name=name, digest=digest)
        return replace(chosen, data=data), images, tested
    changes = {"data.name": toml_literal(name), "data.digest": toml_literal(digest)}
    return change_recipe(chosen, changes), images, tested


def _own_test(chosen: Recipe) -> ImageSet | None:
    """Return the test images of the recipe's data, or None if the tests use held-out training images."""
    return load_split(chosen.data, "test") if chosen.data.hold_out is None else None


def _test_set(test: object, chosen: Recipe, images: ImageSet) -> ImageSet:
    """Return the test data; raise an error if it does not have the classes and the shape of the training images."""
    if isinstance(test, str | Path):
        name, path = named_or_path(test)
        data = chosen.data
        test = load(name, "test") if name else load_path(path or "", "test", resize=data.resize, mode=data.mode)
    tested = as_image_set(test, classes=images.class_names, name=images.info.name, split="test")
    if tested.info.image_shape != images.info.image_shape:
        shapes = tested.info.image_shape, images.info.image_shape
        raise ArgumentError(
            f"test has images of shape {shapes[0]}; expected {shapes[1]}, the shape of the training images"
        )
    return tested


def _for_net(
    net: Classifier, recipe: Recipe, images: ImageSet, test: ImageSet | None
) -> tuple[ImageSet, ImageSet | None]:
    """Return the images in the shape that a net of the user expects; raise an error if it cannot be trained on them."""
    system = system_of(recipe)
    if recipe.system_name == "linf" and net.lipschitz is None:
        raise ArgumentError(
            f"net is a {type(net).__name__} without a Lipschitz constant, which the losses need; wrap its body by "
            "linfnet.Classifier.wrap, or register a system for it"
        )
    if recipe.system_name != "linf" and not isinstance(net, system.net_type):
        expected = system.net_type.__name__
        raise ArgumentError(f"net is a {type(net).__name__}; expected a {expected} for system {recipe.system_name!r}")
    if net.classes != len(images.class_names):
        raise ArgumentError(f"net has {net.classes} classes; the training data has {len(images.class_names)}")
    shape, own = tuple(net.image_shape), images.info.image_shape
    if shape == own:
        return images, test
    # Vectors are stored as images of one row.
    if math.prod(shape) != math.prod(own) or [side for side in shape if side > 1] != [side for side in own if side > 1]:
        raise ArgumentError(f"net expects images of shape {shape}; the training data has {own}")
    for key in ("pad", "flip", "rotate", "zoom", "contrast", "brightness"):
        if getattr(recipe.data, key):
            raise ArgumentError(f"data.{key} is set; expected no augmentation of data that is not images [C, H, W]")
    sets = [each and replace(each, images=each.images.reshape(-1, *shape)) for each in (images, test)]
    return sets[0] or images, sets[1]


def _check_same(folder: RunFolder, described: Recipe) -> None:
    """Raise an error unless the run in a folder has the same settings and data."""
    stored = folder.recipe
    if stored.data.digest != described.data.digest and stored.data.name == described.data.name:
        raise LinfnetError(
            f"the training data is not the data with which the run in {folder.path} was started; pass the same images "
            "in the same order, or choose another folder"
        )
    for field in fields(Recipe):
        before, now = getattr(stored, field.name), getattr(described, field.name)
        if before != now:
            where = f"[{field.name}]" if field.name not in ("name", "title") else field.name
            raise ArgumentError(
                f"the run in {folder.path} has other settings in {where}; pass the same settings, or another folder"
            )


def _trained(folder: RunFolder, net: Classifier | None, device: torch.device) -> Fitted:
    """Return the net of a run that has already finished."""
    if net is None:
        net = load_model(folder.path, device=device)
    else:
        file = folder.path / "model.safetensors"
        # A model folder may store tensors in another form than the net, such as the connections of a sparse net.
        saved = (folder.path / "config.json").exists()
        load_weights(net, load_model(folder.path).state_dict() if saved else read_tensors(file)[0], file)
        net.to(device).eval()
        net.p = math.inf
    result = read_results(folder.path).training
    if result is None:
        raise LinfnetError(f"{folder.path} has no results of training; train it again in another folder")
    return Fitted(net, History.from_json(folder.events()), result, folder.recipe, folder.path)
