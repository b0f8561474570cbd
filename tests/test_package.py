"""The package as a user imports it: its names, and the marker of type annotations."""

import ast
import importlib
import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

import linfnet


def test_the_table_the_list_and_the_imports_agree():
    """`_MODULES` is what users get, `__all__` what they see, and the imports what type checkers read."""
    imports: dict[str, str] = {}
    for node in ast.walk(ast.parse(Path(str(linfnet.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("linfnet."):
            imports |= {alias.name: node.module.removeprefix("linfnet.") for alias in node.names}
    assert imports == linfnet._MODULES | {"__version__": "version"}
    assert set(linfnet.__all__) == set(imports)
    assert all(hasattr(linfnet, name) for name in linfnet.__all__)
    assert set(linfnet.__all__) <= set(dir(linfnet))
    with pytest.raises(AttributeError, match="module 'linfnet' has no attribute 'certifi'"):
        linfnet.certifi  # noqa: B018


def test_type_checkers_know_every_module_but_the_command_line():
    tree = ast.parse(Path(str(linfnet.__file__)).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "linfnet"]
    folder = Path(str(linfnet.__file__)).parent
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {alias.name for node in imports for alias in node.names} == found - {"__init__", "__main__", "cli"}
    assert found - {"__init__", "__main__"} <= set(dir(linfnet))


@pytest.mark.process
def test_modules_are_attributes_without_an_import():
    program = "import sys, linfnet; assert 'torch' not in sys.modules; print(linfnet.nn.reestimate_means.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "reestimate_means\n"


def test_the_package_exports_the_sound_certificates_only():
    """The formula in real arithmetic is found only in the module whose name says so."""
    for name in ("certified_by_margin", "margin_radius", "real_certified", "real_margin_radius"):
        assert not hasattr(linfnet, name)
        assert not hasattr(importlib.import_module("linfnet.certificates"), name)


def test_star_import_has_no_submodules():
    namespace: dict[str, object] = {}
    exec("from linfnet import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(linfnet.__all__)


def test_the_package_is_marked_as_typed():
    """PEP 561: type checkers ignore the annotations of a package without this file."""
    assert importlib.resources.files("linfnet").joinpath("py.typed").is_file()
