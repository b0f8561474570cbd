"""The forms in which a data set may lie in its folder, and how to tell which one is there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from linfnet.data import cifar
from linfnet.data.idx import read_idx
from linfnet.errors import LinfnetError

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes]
"""Images, uint8 [N, C, H, W], and labels, uint8 [N]."""


@dataclass(frozen=True)
class Form:
    """One way to store a data set."""

    files: dict[str, tuple[str, ...]]
    """Per split, the files needed, relative to the folder."""
    read: Callable[[list[Path]], Arrays]
    """Decodes the files of one split."""

    def paths(self, folder: Path, split: str) -> list[Path]:
        """The files of `split` in `folder`, there or not."""
        return [folder / file for file in self.files[split]]

    def complete(self, folder: Path) -> bool:
        """Whether the files of every split are there."""
        return all(path.is_file() for split in self.files for path in self.paths(folder, split))


def _read_idx_pair(paths: list[Path]) -> Arrays:
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    for path, array, rank in ((paths[0], images, 3), (paths[1], labels, 1)):
        if array.ndim != rank:
            raise LinfnetError(f"{path} holds an array of shape {list(array.shape)}; wanted {rank} dimensions")
    if len(images) != len(labels):
        raise LinfnetError(f"{paths[1]} holds {len(labels)} labels for {len(images)} images")
    return images[:, None], labels


def _idx_form(ending: str) -> Form:
    def files(part: str) -> tuple[str, str]:
        return f"{part}-images-idx3-ubyte{ending}", f"{part}-labels-idx1-ubyte{ending}"

    return Form({"train": files("train"), "test": files("t10k")}, _read_idx_pair)


def _cifar_form(folder: str, ending: str, read: Callable[[list[Path]], Arrays], labels: str = "") -> Form:
    batches = tuple(f"{folder}data_batch_{number}{ending}" for number in range(1, 6))
    files = {"train": batches, "test": (f"{folder}test_batch{ending}",)}
    return Form({split: (*files[split], *([f"{split}{labels}"] if labels else [])) for split in files}, read)


_IDX_FORMS = (_idx_form(""), _idx_form(".gz"))

BINARY_BATCHES = _cifar_form("", ".bin", cifar.read_binary)
PNG_BATCHES = _cifar_form("", ".png", cifar.read_png, labels="_lables.json")  # so spelt by its authors

_FORMS = {
    "mnist": _IDX_FORMS,
    "fashion-mnist": _IDX_FORMS,
    "cifar10": (
        BINARY_BATCHES,
        _cifar_form("cifar-10-batches-bin/", ".bin", cifar.read_binary),
        _cifar_form("", "", cifar.read_python),
        _cifar_form("cifar-10-batches-py/", "", cifar.read_python),
        PNG_BATCHES,
    ),
}


def find_form(name: str, folder: Path) -> Form | None:
    """The first form of the set `name` whose files are all in `folder`."""
    return next((form for form in _FORMS[name] if form.complete(folder)), None)
