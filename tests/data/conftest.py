"""Small sets replace the real ones, so that no test needs the network or the user's cache."""

import hashlib
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from samples import Bytes, Sample, Served

from linfnet.data import catalog

SIZES = {"train": 10, "test": 4}


def _digest(images: Bytes, labels: Bytes) -> str:
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, so that no test reads or changes the user's cache."""
    monkeypatch.setenv("LINFNET_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sample]:
    """Every set except digits is replaced by a few random images with their digests."""
    generator = np.random.default_rng(0)
    samples: dict[str, Sample] = {}
    infos: list[catalog.SetInfo] = []
    for name in catalog.known_sets():
        info = catalog.set_info(name)
        if name != "digits":
            arrays = {
                split: (
                    generator.integers(0, 256, (count, *info.image_shape), np.uint8),
                    generator.integers(0, 10, count, np.uint8),
                )
                for split, count in SIZES.items()
            }
            samples[name] = Sample(arrays)
            digests = {split: _digest(*pair) for split, pair in arrays.items()}
            info = replace(info, sizes=SIZES, digests=digests)
        infos.append(info)
    monkeypatch.setattr(catalog, "_SETS", tuple(infos))
    return samples


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Generator[Served]:
    """A web server on this machine, reached without a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Served()
    yield server
    server.stop()
