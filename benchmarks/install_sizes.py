"""Installed size of linfnet's requirements: the core, and what each extra adds to it.

The packages must be installed. The benchmark sums the sizes of the files of each package and of everything that it
requires, and writes records/install-sizes.json.

    pip install -e '.[images,serve,plots,onnx,hub,autoattack,tensorboard]' && python benchmarks/install_sizes.py
"""

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from linfnet.files import write_json
from linfnet.train import environment

ROOT = Path(__file__).parent.parent
EXTRAS = ("images", "serve", "plots", "onnx", "hub", "autoattack", "tensorboard")


def closure(wanted: list[str]) -> dict[str, Distribution]:
    """Return the packages that the requirements install, by name."""
    found: dict[str, Distribution] = {}
    todo = [Requirement(line) for line in wanted]
    while todo:
        requirement = todo.pop()
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            package = distribution(requirement.name)
            if package.name not in found:
                found[package.name] = package
                todo += [Requirement(line) for line in package.requires or ()]
    return found


def megabytes(package: Distribution) -> float:
    """Return the size of the files of a package, without compiled Python files."""
    files = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = closure(project["dependencies"])
    sizes = {name: round(megabytes(package), 1) for name, package in sorted(core.items())}
    record: dict[str, object] = {
        "what": "installed size in MB of the requirements (CPU build of torch), and what each extra adds",
        "environment": environment(),
        "core": {"megabytes": round(sum(sizes.values())), "packages": sizes},
    }
    for extra in EXTRAS:
        added = closure(project["optional-dependencies"][extra])
        sizes = {name: round(megabytes(added[name]), 1) for name in sorted(added.keys() - core.keys())}
        record[extra] = {"megabytes": round(sum(sizes.values())), "packages": sizes}
        print(extra, record[extra])
    write_json(ROOT / "records" / "install-sizes.json", record)


if __name__ == "__main__":
    main()
