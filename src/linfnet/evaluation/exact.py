"""Exact verdicts of an evaluation, batch by batch; finished batches are stored, so that an evaluation can continue."""

import hashlib
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.certificates import Decided
from linfnet.certificates.exact import Verifier
from linfnet.certificates.exact.decide import BRANCHES, SECONDS
from linfnet.epsilon import format_epsilon
from linfnet.files import make_folder, read_tensors, write_tensors
from linfnet.nn import Classifier


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
        self._weights = _digest(*(tensor for _, tensor in sorted(net.state_dict().items()))) if partial else ""

    @torch.no_grad()
    def decide(self, images: Tensor, labels: Tensor, eps: Fraction, attacked: Tensor) -> Decided:
        """Decide images on the device of the net; `attacked` are the results of an attack on them."""
        if self._folder is None:
            return self._decided(images, labels, eps, attacked)
        budget = f"{self._branches} {self._seconds:g} {format_epsilon(eps)}"
        name = hashlib.sha256(f"{self._weights} {_digest(images, labels)} {budget}".encode()).hexdigest()[:16]
        path = self._folder / f"{name}.safetensors"
        if path.exists():
            stored = {name: tensor.to(images.device) for name, tensor in read_tensors(path)[0].items()}
            witness = images.clone()
            witness[stored["broken"]] = stored.pop("witness")
            return Decided(**stored, witness=witness, labels=labels, eps=eps)
        found = self._decided(images, labels, eps, attacked)
        tensors = {name: getattr(found, name) for name in ("robust", "broken", "branches", "prediction")}
        make_folder(self._folder)
        write_tensors(path, {**tensors, "witness": found.witness[found.broken]}, {"linfnet": "exact-batch-1"})
        return found

    def _decided(self, images: Tensor, labels: Tensor, eps: Fraction, attacked: Tensor) -> Decided:
        robust, broken, witness, branches, prediction, _ = self._verifier.decide(
            images, labels, eps, attacked, lambda count: None
        )
        return Decided(robust, broken, witness, branches, prediction, labels, eps)


def _digest(*tensors: Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
