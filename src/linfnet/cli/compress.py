"""`linfnet compress`: a net with only the connections that decide an output."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from linfnet.cli import inputs
from linfnet.cli.console import console, percent, print_table, progress_bar, titled_table
from linfnet.compression import Compressed, compress
from linfnet.data import ImageSet, known_sets
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, LinfnetError, at_least
from linfnet.export import write_card
from linfnet.files import make_folder, read_table, write_json, write_table
from linfnet.nn import Classifier, ConvStemNet, LinfNet, SparseNet, count_parameters
from linfnet.nn.model_path import KnownData, class_names, known_data
from linfnet.results import Results, TrainingResult, read_results
from linfnet.results.storage import RESULTS_FILE, results_to_json
from linfnet.systems import load_model

# The file in the folder of a compressed net with the comparison to the dense net.
COMPRESSION_FILE = "compression.json"
# All files in that folder, of which `COMPRESSION_FILE` is written first.
_FILES = (COMPRESSION_FILE, RESULTS_FILE, "model.safetensors", "config.json", "README.md")


@dataclass(frozen=True)
class Compress:
    """Write a net that has only the connections of a trained net that decide an output for some training image.

    The training images are cropped and flipped as in the run, and perturbed up to epsilon. The compressed net is
    compared with the trained net on the test images. All commands accept its folder. A compressed net can be compressed
    further.

    Examples:
        linfnet compress runs/first
        linfnet compress runs/first --images 10000 --float16 --out small
        linfnet compress cifar10-8 --at-least 5 --pad 3 --flip --out smaller
    """

    model: inputs.Model
    out: inputs.Folder = None
    """The folder for the compressed net. Default: RUN-compressed."""
    images: inputs.Count = None
    """Number of training images in each pass, drawn at random. Default: all."""
    passes: inputs.Number = 4
    """Number of passes, each with other crops, flips and perturbations."""
    eps: Annotated[
        str | None,
        arg(
            metavar="EPS",
            help="The size of the perturbations, in pixel units; 0 for none. Default: the largest of the run's recipe.",
        ),
    ] = None
    float16: bool = False
    """Round the weights, except those of convolutions, to float16: the file is smaller, and the net is measured and
    certified with these weights."""
    at_least: inputs.Number = 1
    """How often a connection must decide an output to be kept."""
    runners_up: inputs.Count = None
    """Also keep connections that were the second largest of a neuron at least this often; slow on a CPU, and not for
    nets that are already compressed."""
    pad: inputs.Count = None
    """Shift the images by up to N pixels at random; 0 for not at all. Default: as in the run's recipe."""
    flip: bool = False
    """Flip the images at random. Default: as in the run's recipe."""
    data: inputs.Data = None
    seed: inputs.Number = 0
    """Seed of the random choices."""
    resize: inputs.Resize = None
    grey: inputs.Grey = False
    rgb: inputs.Rgb = False
    device: inputs.Device = "auto"

    def run(self) -> None:
        inputs.check_counts(
            **{"images": self.images, "passes": self.passes, "at-least": self.at_least, "runners-up": self.runners_up},
        )
        if self.pad is not None:
            at_least("--pad", self.pad, 0)
        found, device = self._on("train").find(((self.eps,),) if self.eps is not None else (), needs_eps=False)
        out = self._new_folder(found.folder)
        net = load_model(found.folder, device=device)
        if not isinstance(net, LinfNet | ConvStemNet | SparseNet):
            expected = "expected 'linf', 'conv-stem' or 'sparse'"
            raise LinfnetError(f"{self.model} is a net of system {net.system!r}; {expected}")
        if self.runners_up is not None and isinstance(net, SparseNet):
            raise LinfnetError(f"--runners-up needs a dense net, but {self.model} is compressed")
        training, test = (self._load(split, net, found) for split in ("train", "test"))
        recipe = found.run.recipe.data if found.run else None
        pad, flip = (recipe.pad, recipe.flip) if recipe else (0, False)
        eps = max(found.epsilons, default=None) or None
        with progress_bar("counting", self.passes * min(len(training), self.images or len(training))) as advance:
            result = compress(
                net, training, eps=eps, images=self.images, passes=self.passes,
                pad=pad if self.pad is None else self.pad, flip=self.flip or flip, at_least=self.at_least,
                runners_up=self.runners_up, dtype="float16" if self.float16 else "float32", check=test, seed=self.seed,
                advance=advance,
            )  # fmt: skip
        for temporary in _leftovers(make_folder(out)):
            temporary.unlink()
        write_json(out / COMPRESSION_FILE, result.to_json())
        if (training := read_results(found.folder).training) is not None:
            write_table(
                out / RESULTS_FILE, results_to_json(Results(training_cost(training, count_parameters(result.net))))
            )
        result.net.save(out, class_names=class_names(found.folder, net.classes))
        write_card(out, result.net, measured=result.describe())
        data = found.data if found.data in known_sets() else str(Path(found.data).resolve())
        epsilons = tuple(eps for eps in found.epsilons if eps)
        about = KnownData(data, epsilons, self._on("train").conversion(found), found.seed)
        # Written last: without the data in this file, the folder is not complete.
        write_table(out / "config.json", {**read_table(out / "config.json"), **about.to_json()})
        _print(result, test, out)

    def _on(self, split: Literal["train", "test"]) -> inputs.OnImages:
        return inputs.OnImages(self.model, self.data, split, None, self.resize, self.grey, self.rgb, self.device)

    def _load(self, split: Literal["train", "test"], net: Classifier, found: inputs.ModelInputs) -> ImageSet:
        return self._on(split).load_set(net, found, inputs.choose_device("cpu"))

    def _new_folder(self, model: Path) -> Path:
        near = self.model if self.model == model else Path("runs") / model.name  # not next to a packaged model
        near = near if near.name not in ("", "..") else near.resolve()
        out = self.out or near.with_name(f"{near.name}-compressed")
        if out.exists() and not (out.is_dir() and _is_incomplete(out)):
            raise ArgumentError(f"--out is {out}, which exists; choose a new or empty folder")
        return out


def training_cost(training: TrainingResult, parameters: int) -> TrainingResult:
    """Return the cost of the training of the dense net, without its accuracies, and the size of the compressed net."""
    return replace(training, test=None, train=None, held_out=None, parameters=parameters)


def _is_incomplete(folder: Path) -> bool:
    """Return whether a folder is empty, or has only files of a compression that was killed before it was complete."""
    names = {entry.name for entry in folder.iterdir()} - {file.name for file in _leftovers(folder)}
    return not names or (COMPRESSION_FILE in names and names <= set(_FILES) and known_data(folder).data is None)


def _leftovers(folder: Path) -> list[Path]:
    """Return the temporary files that a killed compression has left."""
    return [file for name in _FILES for file in folder.glob(f".{name}.*.tmp")]


def _print(result: Compressed, test: ImageSet, out: Path) -> None:
    title = f"{result.checked} {test.split} images of {test.info.name}, accuracy in %"
    certified = () if result.eps is None else (f"certified at {format_epsilon(result.eps)}",)
    table = titled_table(title, ("net",), ("connections", "MB", "clean", *certified))
    for name, one in (("before", result.before), ("compressed", result.after)):
        shares = (percent(one.clean), *(() if one.certified is None else (percent(one.certified),)))
        table.add_row(name, f"{sum(one.connections):,}", f"{one.size / 1e6:.3f}", *shares)
    print_table(table)
    console.print(
        f"{percent(result.identical)} % of the images have identical logits; connections were chosen on "
        f"{result.counted:,} images"
    )
    console.print(f"compressed net: {out}")
