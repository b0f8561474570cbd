"""What the server knows and computes: one net, asked for classes, proofs and attacks."""

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linfnet.attacks import closest_break
from linfnet.certificates import certify_images
from linfnet.errors import LinfnetError
from linfnet.nn.model_path import class_names, find_model
from linfnet.systems import load_model
from linfnet.version import __version__

# After this long an attack answers with what it has.
ATTACK_SECONDS = 20.0


class Service:
    """One net in two bodies over the same weights: an attack sets p, which must not happen under a proof."""

    def __init__(self, model: Path) -> None:
        folder = find_model(model)
        self.name = folder.resolve().name
        self.net = load_model(folder)
        self.names = class_names(folder, self.net.classes)
        shared = {id(tensor): tensor for tensor in (*self.net.parameters(), *self.net.buffers())}
        self.attacked = copy.deepcopy(self.net, shared)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return self.net.image_shape

    def describe(self) -> dict[str, Any]:
        """The answer of GET /api/model."""
        digits = self.names == [str(k) for k in range(self.net.classes)]
        return {
            "name": self.name,
            "linfnet": __version__,
            "image_shape": list(self.shape),
            "class_names": self.names,
            "system": self.net.system,
            "parameters": sum(parameter.numel() for parameter in self.net.parameters()),
            "lipschitz": self.net.lipschitz,
            "arithmetic": self.net.arithmetic,
            "confidence": self.net.confidence,
            "fit": "digit" if digits and self.shape[0] == 1 else "whole",
        }

    def predict(self, image: Tensor) -> dict[str, Any]:
        """The answer of POST /api/predict for pixels [C, H, W]."""
        found = certify_images(self.net, [(image.unsqueeze(0), None)])
        with torch.no_grad(), self.net.at_infinity():
            logits = self.net(image.unsqueeze(0))[0].double()
        best = int(found.predictions[0])
        earliest: list[float | None] = [None] * self.net.classes
        if self.net.lipschitz is not None:
            # No logit changes by more than eps * lipschitz: two of them cannot meet earlier.
            earliest = ((logits[best] - logits) / (2 * self.net.lipschitz)).tolist()
        return {
            "class": self._class(best),
            "runner_up": self._class(int(found.runners_up[0])),
            "radius": _number(found.best_radii[0]),
            "margin_radius": _number(found.radii["margin"][0]) if "margin" in found.radii else None,
            "interval_radius": _number(found.radii[found.names[-1]][0]),
            "scores": [
                {**self._class(k), "logit": logit, "earliest_eps": reach}
                for k, (logit, reach) in enumerate(zip(logits.tolist(), earliest, strict=True))
            ],
            "pixels": image.tolist(),
        }

    def attack(self, image: Tensor, steps: int, stop: Callable[[], bool]) -> dict[str, Any]:
        """The answer of POST /api/attack; `stop` ends it early, as does the time limit."""
        started = time.monotonic()
        # The proof comes from the attack's own body of the net, in its own thread.
        proof = certify_images(self.attacked, [(image.unsqueeze(0), None)])
        label, radius = int(proof.predictions[0]), _number(proof.best_radii[0])
        found = closest_break(
            self.attacked,
            image,
            label,
            radius=radius or 0.0,
            steps=steps,
            stop=lambda: stop() or time.monotonic() - started > ATTACK_SECONDS,
        )
        if self.net.arithmetic == "float32" and found.distance < (radius or 0.0):
            raise LinfnetError(
                f"a change of {found.distance!r} breaks what is certified to {radius!r}: report this bug"
            )
        broken = None
        if found.image is not None:
            with torch.no_grad(), self.attacked.at_infinity():
                logits = self.attacked(found.image.unsqueeze(0))[0]
            # A tie is broken as well: name the class that is not the one it was.
            others = logits.index_fill(0, torch.tensor([label]), -math.inf)
            broken = {
                "distance": found.distance,
                "class": self._class(int(others.argmax())),
                "pixels": found.image.tolist(),
            }
        return {
            "class": self._class(label),
            "radius": radius,
            "broken": broken,
            "trials": [{"eps": t.epsilon, "margin": t.margin, "broken": t.broken} for t in found.trials],
            "complete": found.complete,
            "seconds": round(time.monotonic() - started, 3),
        }

    def _class(self, index: int) -> dict[str, Any]:
        return {"index": index, "name": self.names[index]}


def _number(radius: Tensor) -> float | None:
    """JSON has no infinity: no radius, where two classes tie, is null."""
    return radius.item() if radius.isfinite() else None
