"""`linfnet export`: ONNX files, VNN-LIB properties, the hub."""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import torch
import tyro

from linfnet.cli.certify import Subject, find_subject, run_of
from linfnet.cli.console import console
from linfnet.epsilon import format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.export import push_to_hub, verify_onnx, write_card, write_onnx, write_vnnlib
from linfnet.files import make_folder
from linfnet.nn import Classifier, LinfNet
from linfnet.nn.model_path import find_model
from linfnet.systems import load_model

# Images the ONNX file is checked on.
CHECKED = 16


@dataclass(frozen=True)
class Export:
    """Write a model at p = infinity for other programs; the ONNX file is checked to give the same bits."""

    model: tyro.conf.Positional[Path]
    """A finished run, any folder with model.safetensors and config.json, mnist-small, or hf://user/name."""
    onnx: Path | None = None
    """The ONNX file to write (weights of more than 64 MiB go to FILE.data); needs the extra `onnx`."""
    vnnlib: Path | None = None
    """A folder for VNN-LIB properties, one for each sample and epsilon."""
    samples: tuple[int, ...] = (0,)
    """For --vnnlib: which images, by number."""
    eps: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """For --vnnlib: perturbations in pixel units; by default those of the run's recipe."""
    data: str | None = None
    """For --vnnlib: a data set, or a folder or .npy array of images (whose predicted classes are to be kept)."""
    split: Literal["test", "train"] = "test"
    """For --vnnlib: which images of a data set."""
    card: bool = False
    """Write the model card README.md anew, with all results the folder holds by now."""
    hub: str | None = None
    """Upload weights, config and model card to the Hugging Face hub as user/name, privately; needs the extra `hub`."""

    def run(self) -> int:
        """Write what was asked for and say where it is."""
        asked = tuple(parse_epsilon(text, "--eps") for group in self.eps for text in group)
        if self.onnx is None and self.vnnlib is None and self.hub is None and not self.card:
            raise ArgumentError("nothing to export: give --onnx, --vnnlib, --card or --hub")
        model = find_model(self.model)
        if self.card and model != self.model:  # of the package, or in the hub's cache
            raise ArgumentError(f"--card writes into the folder of a model; {self.model} is not a folder of yours")
        run = run_of(model)
        net = load_model(model)
        if self.onnx is not None:
            self._write_onnx(net, self.onnx)
        if self.vnnlib is not None:
            data = self.data or (run.recipe.data.name if run else None)
            epsilons = asked or (run.recipe.evaluation.eps if run else ())
            if data is None or not epsilons:
                raise ArgumentError(f"{self.model} has no recipe.toml: give --data and --eps")
            subject = find_subject(data, self.split, None, net, torch.device("cpu"))
            self._write_vnnlib(net, self.vnnlib, subject, epsilons)
        if self.card:
            console.print(f"model card: {write_card(model)}")
        if self.hub is not None:
            console.print(f"uploaded: {push_to_hub(model, self.hub)}")
        return 0

    def _write_vnnlib(self, net: Classifier, folder: Path, subject: Subject, epsilons: tuple[Fraction, ...]) -> None:
        for sample in self.samples:
            if not 0 <= sample < len(subject.pixels):
                raise ArgumentError(f"--samples has {sample}; {subject.title} has 0 to {len(subject.pixels) - 1}")
        make_folder(folder)
        for sample in self.samples:
            pixels = subject.pixels[sample]
            with torch.no_grad():
                predicted = int(net(pixels.unsqueeze(0)).argmax())
            label = predicted if subject.labels is None else int(subject.labels[sample])
            for epsilon in epsilons:
                name = f"{sample}-eps-{format_epsilon(epsilon).replace('/', '-of-')}.vnnlib"
                write_vnnlib(folder / name, pixels, label, net.classes, epsilon)
        console.print(f"{len(self.samples) * len(epsilons)} properties: {folder}")

    @staticmethod
    def _write_onnx(net: Classifier, path: Path) -> None:
        if not isinstance(net, LinfNet):
            raise LinfnetError(f"--onnx writes l_inf-distance nets; the model is of system {net.system!r}")
        if path.is_dir():
            raise ArgumentError(f"--onnx is the folder {path}; wanted a file")
        make_folder(path.parent)
        files = write_onnx(net, path)
        verify_onnx(net, path, torch.rand(CHECKED, *net.image_shape, generator=torch.Generator().manual_seed(0)))
        console.print(f"the same bits as the net on {CHECKED} random images: {', '.join(map(str, files))}")
