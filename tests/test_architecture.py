"""Every file and every name in docs/architecture.md exists, and the diagram has the order of test_layers.py."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "linfnet"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def defined_names(source: str) -> set[str]:
    """Return the functions and classes of a module, and its methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def missing(page: str) -> list[str]:
    """Return the paths in code spans, relative to the package or the repository, that do not exist."""
    wrong: list[str] = []
    for span in re.findall(r"`([\w./-]+(?:/|\.(?:py|html))(?::[\w.]+)?)`", re.sub(r"```.*?```", "", page, flags=re.S)):
        file, _, name = span.partition(":")
        path = SOURCE / file if (SOURCE / file).exists() else ROOT / file
        if not path.exists() or (name and name not in defined_names(path.read_text(encoding="utf-8"))):
            wrong.append(span)
    return wrong


def test_every_name_exists():
    assert missing(PAGE) == []
    assert len(re.findall(r"`[\w/]+\.py:[\w.]+`", PAGE)) > 60


@pytest.mark.parametrize("span", ["no/such.py", "boxes.py:no_such", "train/loop.py:Trainer.no_such", "no_such/"])
def test_a_wrong_name_is_found(span: str):
    assert missing(f"see `{span}` and `boxes.py:outer_box`") == [span]


def test_the_diagram_has_the_order_of_the_layers():
    (diagram,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    shown = [set(re.split(r"\s{3,}", line.strip())[0].split()) for line in diagram.splitlines()]
    layers = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
    (order,) = (node.value for node in layers.body if isinstance(node, ast.AnnAssign) and node.value)
    assert [*shown, {"__init__"}, {"__main__"}] == ast.literal_eval(order)
