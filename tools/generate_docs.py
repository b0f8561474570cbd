"""Rewrite the generated blocks of README.md and docs/, the picture of the README and the cards of the packaged models.

They are generated from the files in records/.

    python -m tools.generate_docs

A block is the text between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of BLOCKS. A test checks that
the committed text is up to date.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools import accuracy_tables, speed_tables, system_tables
from tools.compression_tables import compression, fine_tuning
from tools.evaluations import evaluations
from tools.exact_tables import exact
from tools.install_tables import extras
from tools.picture import picture
from tools.recipe_keys import recipe_keys
from tools.search_tables import full_size, prototypes, searches
from tools.zoo import model_files, zoo

ROOT = Path(__file__).parent.parent
BLOCKS: dict[str, Callable[[], str]] = {
    "paper-rows": accuracy_tables.paper_rows,
    "results": accuracy_tables.results,
    "evaluations": evaluations,
    "extras": extras,
    "recipe-keys": recipe_keys,
    "packaged-net": accuracy_tables.packaged_net,
    "models": zoo,
    "systems": accuracy_tables.systems,
    "table1-systems": system_tables.table1_systems,
    "table1-small": system_tables.table1_small,
    "small-systems": system_tables.small_systems,
    "short-runs": accuracy_tables.short_runs,
    "first-phase": accuracy_tables.first_phase,
    "ablation": accuracy_tables.ablation,
    "compression": compression,
    "fine-tuning": fine_tuning,
    "exact": exact,
    "searches": searches,
    "full-size": full_size,
    "prototypes": prototypes,
    "cpu-speed": speed_tables.cpu_speed,
    "gpu-steps": speed_tables.gpu_steps,
    "gpu-step-details": speed_tables.gpu_step_details,
    "full-recipe": speed_tables.full_recipe,
    "run-time": speed_tables.run_time,
    "first-call": speed_tables.first_call,
    "snapping": speed_tables.snapping,
    "float16-steps": speed_tables.float16_steps,
    "snapping-by-seed": speed_tables.snapping_by_seed,
    "first-epochs": speed_tables.first_epochs,
}
FILES: dict[str, Callable[[], str]] = {"docs/images/ball.svg": picture}
_BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def regenerate(text: str, page: Path) -> str:
    """Return the text of a page with all blocks generated from records; links to records are relative to the page."""
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    return _BLOCK.sub(
        lambda found: found[1] + BLOCKS[found[2]]().replace("](records/", f"]({up}records/") + found[4], text
    )


def outdated() -> dict[Path, str]:
    """Return the new text of each page and file whose committed text is out of date."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    new = {page: regenerate(text, page) for page, text in texts.items()}
    for path, text in ({ROOT / name: draw() for name, draw in FILES.items()} | model_files()).items():
        texts[path], new[path] = path.read_text(encoding="utf-8") if path.exists() else "", text
    return {page: text for page, text in new.items() if text != texts[page]}


def main() -> None:
    """Write the pages and files that are out of date and print their names."""
    for page, text in outdated().items():
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{page.relative_to(ROOT)} written\n")


if __name__ == "__main__":
    main()
