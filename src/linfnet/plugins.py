"""The user's own modules, which register losses, systems, attacks and kernels when they are imported.

`--import MODULE` on the command line imports a module. A package can instead declare an entry point of the group
`linfnet.plugins`; it is loaded when a name is used that is not registered.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from linfnet.errors import ArgumentError, LinfnetError, nearest

GROUP = "linfnet.plugins"
HINT = "import your own module first; on the command line: --import MODULE"


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Import modules, so that what they register can be used by name. A module is imported only once.

    Args:
        names: the names of modules, such as `my_module` or `package.module`, or paths of `.py` files. Modules in the
            current folder are found.

    >>> [module.__name__ for module in import_modules(["linfnet.losses"])]
    ['linfnet.losses']
    """
    return [_import_file(name) if name.endswith(".py") else _import_name(name) for name in names]


@cache
def load_entry_points() -> tuple[str, ...]:
    """Load all entry points of the group `linfnet.plugins`, and return their names."""
    points = metadata.entry_points(group=GROUP)
    for point in points:
        try:
            point.load()
        except Exception as error:
            raise LinfnetError(f"plugin {point.name!r} ({point.value}) cannot be loaded: {_reason(error)}") from error
    return tuple(point.name for point in points)


def origin(entry: object) -> str | None:
    """Return what `--import` needs to register a class or function: its module or file; None for those of linfnet."""
    name = getattr(entry, "__module__", None) or "linfnet"
    if name.split(".")[0] == "linfnet":
        return None
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    by_path = name == "__main__" or getattr(module, "__linfnet_path__", False)
    return str(Path(file).resolve()) if file and by_path else name


def missing_imports(folder: Path) -> str:
    """Return the part of an error message that names the modules with which a run was trained, or an empty text."""
    try:
        environment: Any = json.loads((folder / "env.json").read_text(encoding="utf-8"))
        names = cast(list[Any], environment["imports"])
        return f"; import the modules of the run first (--import): {' '.join(map(str, names))}" if names else ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""


def _import_name(name: str) -> ModuleType:
    folder = str(Path.cwd())
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise LinfnetError(f"module {name} cannot be imported: {error}") from error
        files = [file.stem for file in Path().glob("*.py")]
        raise ArgumentError(
            f"the module to import is {name!r}; expected a module in the current folder or an installed one, or a path "
            f"that ends in .py{nearest(name, files)}"
        ) from None
    except Exception as error:
        raise LinfnetError(f"module {name} cannot be imported: {_reason(error)}") from error
    finally:
        if added:
            sys.path.remove(folder)


def _import_file(name: str) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ArgumentError(f"the module to import is {name!r}; there is no such file")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).resolve() == path and module.__name__ != "__main__":
            return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if path.stem in sys.modules or spec is None or spec.loader is None:
        raise ArgumentError(
            f"the module to import is {name!r}, but another module is called {path.stem!r}; rename the file"
        )
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__linfnet_path__"] = True
    sys.modules[path.stem] = module  # dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise LinfnetError(f"{name} cannot be imported: {_reason(error)}") from error
    return module


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
