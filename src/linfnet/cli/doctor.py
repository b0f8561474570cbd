"""`linfnet doctor`: what this machine has, and what will run on it."""

import platform
from dataclasses import dataclass
from importlib import metadata

import torch
from rich.table import Table

from linfnet import ops
from linfnet.cli.console import console
from linfnet.data import cache_folder, known_sets, present, verify
from linfnet.errors import LinfnetError
from linfnet.ops import cuda
from linfnet.train import environment
from linfnet.version import __version__


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, which implementation runs where, and which data sets are present and verified."""

    def run(self) -> int:
        """Print the tables; always succeeds."""
        versions = Table(title="versions", title_justify="left", show_header=False)
        versions.add_row("linfnet", f"{__version__} ({environment()['commit'] or 'no commit known'})")
        versions.add_row("python", platform.python_version())
        for package in ("torch", "numpy", "safetensors", "tyro", "rich", "Pillow", "matplotlib"):
            versions.add_row(package, _version(package))
        console.print(versions)
        console.print(self._operations())
        console.print(ops.cpu.status())
        if torch.cuda.is_available():
            console.print(cuda.status())
        console.print(self._data())
        return 0

    @staticmethod
    def _operations() -> Table:
        table = Table(title="distance kernels", title_justify="left")
        for name in ("device", "float32", "float64"):
            table.add_column(name)
        devices = {"cpu": f"cpu: {environment()['cpu']}, {torch.get_num_threads()} threads"}
        if torch.cuda.is_available():
            devices["cuda"] = f"cuda: {torch.cuda.get_device_name()}"
        for kind, title in devices.items():
            table.add_row(title, *(ops.choose(kind, dtype) for dtype in (torch.float32, torch.float64)))
        return table

    @staticmethod
    def _data() -> Table:
        table = Table("set", "state", title=f"data in {cache_folder()}", title_justify="left")
        for name in known_sets():
            state = "not fetched"
            if present(name):
                try:
                    verify(name)
                    state = "present, verified"
                except LinfnetError as error:
                    state = f"damaged: {error}"
            table.add_row(name, state)
        return table
