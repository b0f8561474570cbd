"""Import the user's own modules, which register losses, systems and attacks by decorators."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from linfnet.errors import LinfnetError


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, or from paths of .py files.

    Args:
        names: module names such as `my_package.losses`, or paths such as `my_losses.py`.
    """
    for name in names:
        try:
            if name.endswith(".py"):
                path = Path(name)
                spec = importlib.util.spec_from_file_location(path.stem, path)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[path.stem] = module
                spec.loader.exec_module(module)
            else:
                importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise LinfnetError(f"{name} cannot be imported: {error}") from None
