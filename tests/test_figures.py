"""Figures: the file format follows the suffix, and a missing matplotlib is one sentence."""

import sys
from pathlib import Path

import pytest

from linfnet.errors import LinfnetError
from linfnet.figures import new_figure, save_figure


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_suffix_decides_the_format(tmp_path: Path, name: str, start: bytes):
    save_figure(new_figure(2, 1), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_missing_matplotlib_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LinfnetError, match=r"needs matplotlib: pip install 'linfnet\[plots\]'"):
        new_figure(1, 1)
