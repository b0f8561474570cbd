"""Inputs of commands: the device, a model folder with its data set and epsilons, and the user's images."""

import re
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tyro.conf import arg

from linfnet.data import (
    BadFile,
    BadFilesError,
    Conversion,
    ImageSet,
    NamedImages,
    hold_out_indices,
    is_labelled,
    known_sets,
    load_labelled,
    parse_size,
    read_images,
)
from linfnet.distributed.device import choose_device
from linfnet.epsilon import parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least, printable
from linfnet.nn import Classifier
from linfnet.nn.model_path import (
    KnownData,
    check_model,
    class_names,
    find_model,
    known_data,
    packaged_hint,
    pretrained_names,
)
from linfnet.systems import load_model
from linfnet.train import RunFolder

# Number of images in one batch of a certificate or an attack.
BATCH = 500

EpsilonGroups = tuple[tuple[str, ...], ...]

# Kinds of options, with the names of their values in the help text.
Folder = Annotated[Path | None, arg(metavar="DIR")]
File = Annotated[Path | None, arg(metavar="FILE")]
Count = Annotated[int | None, arg(metavar="N")]
Number = Annotated[int, arg(metavar="N")]
Runs = Annotated[tyro.conf.Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]

# Options that several commands have.
Model = Annotated[
    tyro.conf.Positional[Path],
    arg(
        metavar="MODEL",
        help="A finished run, a folder with model.safetensors and config.json, the name of a packaged model (linfnet "
        "models), or hf://user/name.",
    ),
]
ModelFolder = Annotated[
    tyro.conf.Positional[Path],
    arg(metavar="RUN", help="A finished run, or a folder with model.safetensors and config.json."),
]
Epsilons = Annotated[
    tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(
        metavar="EPS [EPS ...]",
        help="Perturbations in pixel units, such as 8/255 or 0.1. Default: those of the run's recipe.",
    ),
]
Changes = Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="KEY=VALUE")]
Data = Annotated[
    str | None,
    arg(
        metavar="SET|PATH",
        help="A data set by name, or your own data: a folder with a sub-folder for each class, a CSV file "
        "(file,label), or an .npz file. Default: the data set of the run.",
    ),
]
TrainingData = Annotated[
    str | None,
    arg(
        metavar="SET|PATH",
        help="Train on other data: a data set by name, or your own data: a folder with a sub-folder for each class, a "
        "CSV file (file,label), an .npz file, or a folder of .npy files. Default: the data of the recipe.",
    ),
]
SPLIT_HELP = "The split of the data. Own data without a test folder is split by a seed: one fifth is the test split."
Split = Annotated[Literal["test", "train", "val", "all"], arg(help=SPLIT_HELP)]
SplitOfRun = Annotated[
    Literal["test", "train", "val", "all", "held-out"],
    arg(help=f"{SPLIT_HELP} held-out: the training images that the run did not use (data.hold_out of its recipe)."),
]
Limit = Annotated[int | None, arg(metavar="N", help="Use only the first N images.")]
Resize = Annotated[
    str | None,
    arg(metavar="HxW", help="Scale image files to this height and width, such as 28x28."),
]
Grey = Annotated[bool, arg(help="Convert image files to grey.")]
Rgb = Annotated[bool, arg(help="Convert image files to RGB.")]
Device = Annotated[str, arg(metavar="DEVICE", help="cpu, cuda or cuda:INDEX; auto selects a GPU if there is one.")]


def parse_epsilons(groups: EpsilonGroups) -> tuple[Fraction, ...]:
    """Return the epsilons of all `--eps` options in rising order, each once."""
    return tuple(sorted({parse_epsilon(text, "--eps") for group in groups for text in group}))


def check_counts(**values: int | None) -> None:
    """Raise an error if an option is below 1; options that are None are ignored."""
    for name, value in values.items():
        if value is not None:
            at_least(f"--{name}", value, 1)


def finished_run(folder: Path) -> RunFolder | None:
    """Return the finished run in a folder, or None if the folder has only a model."""
    if not folder.exists() and str(folder) in pretrained_names():
        raise LinfnetError(f"{folder} is not a folder{packaged_hint(folder)}")
    check_model(folder)
    if not (folder / "recipe.toml").is_file():
        return None
    run = RunFolder.open(folder)
    if not run.finished:
        raise LinfnetError(f"{folder} has not finished; {run.resume_hint}")
    return run


def load_checked(model: Path, device: torch.device | str = "cpu") -> tuple[Path, Classifier, list[str]]:
    """Load a model; return its folder, the net and the class names. A path without a model is one clear error."""
    folder = find_model(model)
    check_model(folder)
    net = load_model(folder, device=device)
    return folder, net, class_names(folder, net.classes)


@dataclass(frozen=True)
class ModelInputs:
    """A model folder, and the data set and the epsilons to use, from the command line or from the recipe."""

    folder: Path
    run: RunFolder | None
    data: str
    epsilons: tuple[Fraction, ...]
    conversion: Conversion
    """Of the image files of the model's own data."""
    seed: int
    """Of the split of the model's own data."""


def find_inputs(
    model: Path, data: str | None, epsilons: tuple[Fraction, ...] = (), *, needs_eps: bool = True, by_name: bool = True
) -> ModelInputs:
    """Find the model; if `--data` or `--eps` is not given, use the data set or the epsilons of its recipe.

    `needs_eps`: raise an error if there is no epsilon. `by_name`: also accept a packaged model or `hf://user/name`.
    """
    folder = find_model(model) if by_name else model
    run = finished_run(folder)
    known = _data_of(run) if run else known_data(folder)
    epsilons = epsilons or known.eps
    data, known = (known.data, known) if data is None else (data, KnownData())
    missing = ["--data"] * (data is None) + ["--eps"] * (needs_eps and not epsilons)
    if data is None or missing:
        reason = "was trained on data from Python" if run else "has no recipe.toml"
        raise ArgumentError(f"{model} {reason}: give {' and '.join(missing)}")
    return ModelInputs(folder, run, data, epsilons, known.conversion, known.seed)


def _data_of(run: RunFolder) -> KnownData:
    """Return the data of a run, and how its files are converted and split."""
    data, epsilons = run.recipe.data, run.recipe.evaluation.eps
    if data.path is not None:
        return KnownData(str(data.path), epsilons, Conversion(data.resize, data.mode), data.split_seed or 0)
    return KnownData(None if data.in_memory else data.name, epsilons)


def parse_conversion(resize: str | None, grey: bool, rgb: bool) -> Conversion:
    """Return the conversion that `--resize`, `--grey` and `--rgb` ask for."""
    if grey and rgb:
        raise ArgumentError("--grey and --rgb are both given; expected one of them")
    size = None if resize is None else parse_size(resize, "--resize")
    return Conversion(size, "grey" if grey else "rgb" if rgb else None)


def bad_file_text(file: BadFile, shape: tuple[int, ...]) -> str:
    """Describe a file that cannot be used; conversions are named as options of the command line."""
    option = {1: "--grey", 3: "--rgb"}.get(shape[0], "--grey or --rgb")
    text = re.sub(r'convert all with mode="grey" or mode="rgb"', f"pass {option}", str(file))
    text = re.sub(r"expected (grey|RGB):", r"the net expects \1 images:", text)
    return re.sub(r"convert all with resize=\((\d+), (\d+)\)", r"pass --resize \1x\2", text)


class SkippedFiles:
    """Prints a line on standard error for each image file that cannot be used, and counts these files."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.count = shape, 0

    def __call__(self, file: BadFile) -> None:
        self.count += 1
        sys.stderr.write(f"skipped: {printable(' '.join(bad_file_text(file, self.shape).splitlines()))}\n")

    @property
    def status(self) -> int:
        """The exit status of the command: 2 if a file was skipped."""
        return 2 if self.count else 0


def bad_files_error(error: BadFilesError, shape: tuple[int, ...] = (0,)) -> LinfnetError:
    """Return the error in the words of the command line, as one line; `shape` is what the net expects."""
    listed = "; ".join(error.listed(lambda file: bad_file_text(file, shape)))
    return LinfnetError(listed if len(error.bad) == 1 else f"{error.summary}: {listed}")


@dataclass(frozen=True)
class OnImages:
    """Options of the commands that certify or attack images."""

    model: Model
    data: Data = None
    split: SplitOfRun = "test"
    limit: Limit = None
    resize: Resize = None
    grey: Grey = False
    rgb: Rgb = False
    device: Device = "auto"

    def find(
        self, eps: EpsilonGroups = (), *, needs_eps: bool = True, by_name: bool = True, shared: bool = False
    ) -> tuple[ModelInputs, torch.device]:
        """Check the options; return the model, the data set and the epsilons to use, and the device."""
        epsilons = parse_epsilons(eps)
        check_counts(limit=self.limit)
        parse_conversion(self.resize, self.grey, self.rgb)
        device = choose_device(self.device, shared=shared)
        return find_inputs(self.model, self.data, epsilons, needs_eps=needs_eps, by_name=by_name), device

    def load_set(self, net: Classifier, inputs: ModelInputs, device: torch.device) -> ImageSet:
        """Load the first images of labelled data; raise an error if they do not fit the net."""
        if not is_labelled(inputs.data):
            raise LinfnetError(
                f"{inputs.data} has no labels, which this command needs: give a folder with a sub-folder for each "
                "class, a CSV file (file,label) or an .npz file; linfnet certify takes images without labels"
            )
        return self._labelled(net, inputs, None)[0].first(self.limit).to(device)

    def _labelled(
        self, net: Classifier, inputs: ModelInputs, skipped: SkippedFiles | None
    ) -> tuple[ImageSet, list[str]]:
        own = inputs.data not in known_sets()
        count = self._held_out(inputs) if self.split == "held-out" else None
        try:
            images, names = load_labelled(
                inputs.data,
                self.split if count is None else "train",
                shape=net.picture_shape(),
                class_names=class_names(inputs.folder, net.classes) if own else (),
                conversion=self.conversion(inputs),
                seed=inputs.seed,
                on_bad=skipped,
            )
        except BadFilesError as error:
            raise bad_files_error(error, net.picture_shape()) from None
        if count is None:
            return images, names
        return images.hold_out(count)[1], [names[index] for index in hold_out_indices(len(images), count)[1].tolist()]

    def _held_out(self, inputs: ModelInputs) -> int:
        """Return the number of training images that the run held out; raise an error if there are none."""
        count = inputs.run.recipe.data.hold_out if inputs.run else None
        if count is None:
            raise ArgumentError(f"--split is 'held-out', but {self.model} held out no images; train with data.hold_out")
        if self.data is not None:
            raise ArgumentError("--split is 'held-out', which is a part of the data of the run; expected no --data")
        return count

    def conversion(self, inputs: ModelInputs) -> Conversion:
        """Return the conversion of image files: the given options, completed by those of the model's data."""
        given = parse_conversion(self.resize, self.grey, self.rgb)
        return Conversion(given.resize or inputs.conversion.resize, given.mode or inputs.conversion.mode)

    def load_images(self, net: Classifier, inputs: ModelInputs, skipped: SkippedFiles | None = None) -> NamedImages:
        """Load labelled or unlabelled images; with `skipped`, files that cannot be used are left out."""
        if is_labelled(inputs.data):
            images, names = self._labelled(net, inputs, skipped)
            loaded = NamedImages(images.pixels(), names, images.labels, f"{images.info.name} {images.split}")
        else:
            loaded = read_own_images([Path(inputs.data)], net, self.conversion(inputs), skipped)
        return loaded.first(self.limit)

    def load(
        self, eps: EpsilonGroups, *, needs_eps: bool = True, skip: bool = False
    ) -> tuple[Classifier, NamedImages, ModelInputs, int]:
        """Load the net and the images; also return the model with the epsilons, and the exit status.

        `skip`: leave out image files that cannot be used, instead of raising an error.
        """
        inputs, device = self.find(eps, needs_eps=needs_eps)
        net = load_model(inputs.folder, device=device)
        skipped = SkippedFiles(net.picture_shape())
        images = self.load_images(net, inputs, skipped if skip else None).to(device)
        return net, images, inputs, skipped.status


def read_own_images(
    paths: list[Path], net: Classifier, conversion: Conversion, skipped: SkippedFiles | None
) -> NamedImages:
    """Read unlabelled images for a net; an error names the options that convert the files."""
    try:
        return read_images(paths, net.picture_shape(), conversion=conversion, on_bad=skipped)
    except BadFilesError as error:
        raise bad_files_error(error, net.picture_shape()) from None
