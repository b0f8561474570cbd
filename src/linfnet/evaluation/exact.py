"""Exact verdicts of an evaluation, batch by batch; finished batches are stored, so that an evaluation can continue."""

import hashlib
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates import Decided
from linfnet.certificates.exact import Verifier
from linfnet.certificates.exact.circuit import Circuit
from linfnet.certificates.exact.decide import BRANCHES, SECONDS
from linfnet.epsilon import format_epsilon
from linfnet.errors import LinfnetError
from linfnet.files import check_tensors, make_folder, read_tensors, write_tensors
from linfnet.nn import Classifier
from linfnet.version import __version__

_METADATA = {"linfnet": "exact-batch-1"}
# The tensors of a stored batch with an element for each image.
_VERDICTS = ("robust", "broken", "branches", "prediction")


class ExactBatches:
    """Decides batches of images of one net.

    Args:
        net: an l_inf-distance net.
        branches, seconds: the budget for an image, as in `linfnet.certificates.decide`.
        partial: a folder for the verdicts of finished batches, or None. A batch of the same net, images, epsilon and
            budget is read from it instead of being decided again.
    """

    def __init__(
        self, net: Classifier, *, branches: int = BRANCHES, seconds: float = SECONDS, partial: Path | None = None
    ) -> None:
        self._verifier = Verifier(net, branches=branches, seconds=seconds)
        self._folder, self._branches, self._seconds = partial, branches, seconds
        self._net = _net_digest(self._verifier.circuit) if partial else ""

    @torch.no_grad()
    def decide(self, images: Tensor, labels: Tensor, eps: Fraction, attacked: Tensor) -> Decided:
        """Decide images on the device of the net; `attacked` are the results of an attack on them."""
        if self._folder is None:
            return self._decided(images, labels, eps, attacked)
        budget = f"{self._branches} {self._seconds:g} {format_epsilon(eps)}"
        name = hashlib.sha256(f"{__version__} {self._net} {_digest(images, labels)} {budget}".encode()).hexdigest()[:16]
        path = self._folder / f"{name}.safetensors"
        stored = _read(path, len(images))
        if stored is not None:
            verdicts, witness = {name: stored[name].to(images.device) for name in _VERDICTS}, images.clone()
            witness[verdicts["broken"]] = stored["witness"].to(images)
            return Decided(**verdicts, witness=witness, labels=labels, eps=eps)
        found = self._decided(images, labels, eps, attacked)
        tensors = {name: getattr(found, name) for name in _VERDICTS}
        make_folder(self._folder)
        write_tensors(path, {**tensors, "witness": found.witness[found.broken]}, _METADATA)
        return found

    def _decided(self, images: Tensor, labels: Tensor, eps: Fraction, attacked: Tensor) -> Decided:
        robust, broken, witness, branches, prediction, _ = self._verifier.decide(
            images, labels, eps, attacked, lambda count: None
        )
        return Decided(robust, broken, witness, branches, prediction, labels, eps)


def _read(path: Path, count: int) -> dict[str, Tensor] | None:
    """Return the stored verdicts of a batch, or None if there are none or the file is damaged."""
    try:
        if not path.exists() or not check_tensors(path)[1]:
            return None
        tensors, metadata = read_tensors(path)
    except LinfnetError:
        return None
    if metadata != _METADATA or tensors.keys() != {*_VERDICTS, "witness"}:
        return None
    return tensors if all(tensors[name].shape == (count,) for name in _VERDICTS) else None


def _net_digest(circuit: Circuit) -> str:
    """Return a digest of everything that the net computes."""
    total = hashlib.sha256(f"{circuit.pixels} {_digest(circuit.outputs)}".encode())
    for stage in circuit.stages:
        parts = [part for part in (stage.index, stage.weight, stage.offsets) if part is not None]
        shapes = [(tuple(part.shape), str(part.dtype)) for part in parts]
        total.update(f"{stage.kind} {stage.start} {stage.size} {shapes} {_digest(*parts)}".encode())
    return total.hexdigest()


def _digest(*tensors: Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().numpy().tobytes())
    return total.hexdigest()
