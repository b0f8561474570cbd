"""`linfnet search`: variants of a recipe, compared by short runs."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import arg

from linfnet.cli.console import console, draw_figure, print_table, progress_of, titled_table
from linfnet.cli.inputs import Changes, Count, Device, File, Folder, Number
from linfnet.distributed.group import launched
from linfnet.errors import ArgumentError
from linfnet.search import SearchOutcome, Variant, grid, read_variants, search
from linfnet.search.outcome import COLUMNS
from linfnet.search.plot import draw_search


@dataclass(frozen=True)
class Search:
    """Train variants of a recipe with several seeds, and rank them by certified accuracy on held-out training images.

    A tenth of the training images is held out; test images are never read. Make the nets narrow and the schedules
    short by --set. After an interrupt, the same command resumes the search; with other variants or seeds, it adds them.

    Examples:
        linfnet search digits --vary lr=0.01,0.03 --out runs/lr
        linfnet search digits --vary clip_leak=0,0.1 --vary slopes_p=none,64
        linfnet search digits --variant as-is --variant leaky clip_leak=0.1
    """

    recipe: Annotated[tyro.conf.Positional[str], arg(metavar="RECIPE")]
    """The name of a recipe (`linfnet recipes` lists them) or a TOML file."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="KEY=V1,V2,...")] = ()
    """Values of a key to compare; `none` leaves the key as it is. With several keys, all combinations are trained."""
    variant: Annotated[tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="NAME [KEY=VALUE ...]")] = ()
    """A variant with a name; without changes, it is the recipe itself."""
    variants: File = None
    """Variants from a TOML file: a table [NAME] for each, with lines such as loss.clip_leak = 0.1."""
    set: Changes = ()
    """Change keys of all trials, as in `linfnet train`."""
    seeds: Annotated[str, arg(metavar="S1,S2,...")] = "0,1"
    """The seeds with which each variant is trained."""
    hold_out: Count = None
    """The number of training images that are held out. Default: a tenth of the training images."""
    jobs: Number = 1
    """The number of trials that run at the same time, on one GPU or CPU."""
    out: Folder = None
    """The folder for the trials and the tables. Default: runs/search/RECIPE."""
    keep_models: bool = False
    """Keep the weights of finished trials. Otherwise only their results, recipes and logs remain."""
    device: Device = "auto"

    def run(self) -> int:
        """Train what is missing, and print the table."""
        try:
            return self._search()
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; run the same command again to resume the search") from None

    def _search(self) -> int:
        if launched():
            raise ArgumentError("a search starts its own processes: start it without torchrun, with --jobs")
        changes, varied = (list(itertools.chain(*groups)) for groups in (self.set, self.vary))
        variants = [Variant(name, tuple(own)) for name, *own in filter(None, self.variant)]
        variants += read_variants(self.variants) if self.variants is not None else []
        variants += grid(varied)
        out = self.out or Path("runs/search") / Path(self.recipe).stem
        with progress_of("epochs") as update:
            outcome = search(
                self.recipe,
                variants,
                out=out,
                seeds=_parse_seeds(self.seeds),
                settings=changes,
                hold_out=self.hold_out,
                jobs=self.jobs,
                device=self.device,
                keep_models=self.keep_models,
                note=console.print,
                progress=update,
            )
        _print(outcome)
        files = ", ".join(str(out / f"outcome.{suffix}") for suffix in ("json", "csv", "md"))
        console.print(f"outcome: {files}")
        draw_figure(out / "outcome.png", lambda path: draw_search(path, outcome))
        return 2 if outcome.failed else 0


def _parse_seeds(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ArgumentError(f"--seeds is {text!r}; expected whole numbers with commas between them, such as 0,1,2")
    return [int(part) for part in parts]


def _print(outcome: SearchOutcome) -> None:
    table = titled_table(outcome.title, COLUMNS[:1], COLUMNS[1:])
    for row in outcome.rows():
        table.add_row(*row)
    print_table(table)
    for name, error in outcome.failed.items():
        console.print(f"failed: {name}: {error}")
