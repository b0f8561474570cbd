"""`linfnet export` and `serve`: ONNX files, VNN-LIB properties, the Hugging Face hub, and a local server."""

import contextlib
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import arg

from linfnet.cli.console import console
from linfnet.cli.inputs import (
    Data,
    Epsilons,
    File,
    Folder,
    Model,
    OnImages,
    Split,
    find_inputs,
    finished_run,
    parse_epsilons,
)
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError, require
from linfnet.export import push_to_hub, verify_onnx, vnnlib_property, write_card, write_onnx
from linfnet.files import make_folder, read_table, write_text
from linfnet.nn import Classifier
from linfnet.nn.model_card import names_in
from linfnet.nn.model_path import check_model, find_model
from linfnet.systems import load_model

# Number of random images on which the ONNX file is checked.
CHECKED = 16


@dataclass(frozen=True)
class Export:
    """Write a model at p = infinity for other programs. The outputs of the ONNX file are checked bit by bit.

    Examples:
        linfnet export mnist-small --onnx net.onnx
        linfnet export runs/first --vnnlib properties --samples 0 7 --eps 0.1
    """

    model: Model
    onnx: File = None
    """The ONNX file to write; needs the extra `onnx`. Weights of more than 64 MiB are written to FILE.data."""
    vnnlib: Folder = None
    """A folder for VNN-LIB properties: one for each image of --samples and each epsilon of --eps."""
    samples: Annotated[tuple[int, ...], arg(metavar="N [N ...]")] = (0,)
    """For --vnnlib: the indices of the images."""
    eps: Epsilons = ()
    data: Data = None
    split: Split = "test"
    card: bool = False
    """Write the model card README.md again, with all current results of the folder."""
    hub: Annotated[str | None, arg(metavar="USER/NAME")] = None
    """Upload weights, config and model card to the Hugging Face hub as user/name, privately; needs the extra `hub`."""

    def run(self) -> None:
        epsilons = parse_epsilons(self.eps)
        if self.onnx is None and self.vnnlib is None and self.hub is None and not self.card:
            raise ArgumentError("there is nothing to export: give --onnx, --vnnlib, --card or --hub")
        model = find_model(self.model)
        if self.card and model != self.model:  # a packaged model, or one in the cache of the hub
            raise ArgumentError(
                f"--card writes into the model's folder; {self.model} is a packaged or downloaded model"
            )
        finished_run(model)
        net = load_model(model)
        if self.onnx is not None:
            self._write_onnx(net, self.onnx, names_in(read_table(model / "config.json")))
        if self.vnnlib is not None:
            self._write_vnnlib(net, self.vnnlib, epsilons)
        if self.card:
            console.print(f"model card: {write_card(model, net)}")
        if self.hub is not None:
            console.print(f"uploaded: {push_to_hub(model, self.hub)}")

    def _write_vnnlib(self, net: Classifier, folder: Path, epsilons: tuple[Fraction, ...]) -> None:
        inputs = find_inputs(self.model, self.data, epsilons)
        images = OnImages(self.model, self.data, self.split).load_images(net, inputs)
        for sample in self.samples:
            if not 0 <= sample < len(images.pixels):
                raise ArgumentError(
                    f"--samples has {sample}; expected indices of {images.title}, 0 to {len(images.pixels) - 1}"
                )
        make_folder(folder)
        for sample in self.samples:
            pixels = images.pixels[sample]
            with torch.no_grad():
                predicted = net(pixels.unsqueeze(0)).argmax()
            label = int(predicted if images.labels is None else images.labels[sample])
            for epsilon in inputs.epsilons:
                name = f"{sample}-eps-{format_epsilon(epsilon).replace('/', '-of-')}.vnnlib"
                write_text(folder / name, vnnlib_property(pixels, label, net.classes, epsilon))
        count = len(self.samples) * len(inputs.epsilons)
        console.print(f"{count} {'property' if count == 1 else 'properties'}: {folder}")

    @staticmethod
    def _write_onnx(net: Classifier, path: Path, class_names: Sequence[str]) -> None:
        if path.is_dir():
            raise ArgumentError(f"--onnx is {path}, a folder; expected a file")
        require("onnxruntime", "onnx")  # before the file is written, because a file that was not checked is of no use
        make_folder(path.parent)
        files = write_onnx(net, path, class_names)
        verify_onnx(net, path, torch.rand(CHECKED, *net.image_shape, generator=torch.Generator().manual_seed(0)))
        console.print(f"wrote {', '.join(map(str, files))}: bitwise equal to the net on {CHECKED} random images")


@dataclass(frozen=True)
class Serve:
    """Start a local server with a web page and a JSON API for one net.

    Examples:
        linfnet serve --open
        linfnet serve runs/first --port 8001
    """

    model: Model = Path("mnist-small")
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1"
    """The address to listen on. With a loopback address, other machines cannot reach the server."""
    port: Annotated[int, arg(metavar="PORT")] = 8000
    """The port; 0 selects a free port."""
    open: bool = False
    """Open the page in the browser."""

    def run(self) -> None:
        for module in ("fastapi", "uvicorn", "PIL"):
            require(module, "serve")
        check_model(find_model(self.model))
        from linfnet.serve import Service, bind, run_server, url_of

        with bind(self.host, self.port) as bound:
            service = Service(self.model)
            url = url_of(bound, self.host)
            console.print(f"serving {service.name} on {url} (press Ctrl-C to stop)")
            if self.open:
                webbrowser.open(url)
            # Ctrl-C is the usual way to stop a server, not an error.
            with contextlib.suppress(KeyboardInterrupt):
                run_server(service, bound, frozenset({"localhost", self.host}))
            console.print("stopped")
