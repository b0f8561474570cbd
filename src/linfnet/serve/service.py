"""The computations behind the API for one net: class, certified radii, attack."""

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import closest_break
from linfnet.certificates import Certification, certify_images
from linfnet.errors import LinfnetError
from linfnet.nn.classifier import count_parameters
from linfnet.nn.model_path import class_names, find_model
from linfnet.serve.schemas import Attack, Broken, Class, Model, Prediction, Score, Trial
from linfnet.systems import load_model
from linfnet.version import __version__

# After this many seconds an attack returns what it has found.
ATTACK_SECONDS = 20.0


class Service:
    """One net in two copies that share weights: an attack changes p, and certificates run in another thread."""

    def __init__(self, model: Path) -> None:
        folder = find_model(model)
        self.name = folder.resolve().name
        self.net = load_model(folder)
        self.class_names = class_names(folder, self.net.classes)
        shared = {id(tensor): tensor for tensor in (*self.net.parameters(), *self.net.buffers())}
        self.attacked = copy.deepcopy(self.net, shared)

    def describe(self) -> Model:
        """Describe the net."""
        digits = self.class_names == [str(k) for k in range(self.net.classes)]
        return Model(
            name=self.name,
            linfnet=__version__,
            image_shape=list(self.net.image_shape),
            class_names=self.class_names,
            system=self.net.system,
            parameters=count_parameters(self.net),
            lipschitz=self.net.lipschitz,
            arithmetic=self.net.arithmetic,
            confidence=self.net.confidence,
            fit="digit" if digits and self.net.image_shape[0] == 1 else "whole",
        )

    def predict(self, image: Tensor) -> Prediction:
        """Classify and certify pixels [C, H, W] in [0, 1]."""
        certification = certify_images(self.net, [(image.unsqueeze(0), None)])
        with torch.no_grad(), self.net.at_infinity():
            logits = self.net(image.unsqueeze(0))[0].double()
        best, lipschitz = int(certification.predictions[0]), self.net.lipschitz
        # No logit changes by more than eps * lipschitz: two of them need at least this eps to become equal.
        earliest = ((logits[best] - logits) / (2 * lipschitz)).tolist() if lipschitz else [None] * len(logits)
        return Prediction(
            class_=self._class(best),
            runner_up=self._class(int(certification.runners_up[0])),
            **_radii(certification),
            scores=[
                Score(index=k, name=self.class_names[k], logit=logit, earliest_eps=eps)
                for k, (logit, eps) in enumerate(zip(logits.tolist(), earliest, strict=True))
            ],
            pixels=image.tolist(),
        )

    def attack(self, image: Tensor, steps: int, stop: Callable[[], bool]) -> Attack:
        """Search the closest misclassified image; `stop` and the time limit end the search early."""
        started = time.monotonic()
        # Certified with the attack's copy of the net, which only the attack's thread uses.
        certification = certify_images(self.attacked, [(image.unsqueeze(0), None)])
        label, radius = int(certification.predictions[0]), _radii(certification)["radius"]
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
                f"a change of {found.distance!r} changes the class although {radius!r} is certified: report this bug"
            )
        broken = None
        if found.image is not None:
            with torch.no_grad(), self.attacked.at_infinity():
                logits = self.attacked(found.image.unsqueeze(0))[0]
            # In a tie the label may still come first: report the best of the other classes.
            others = logits.index_fill(0, torch.tensor([label]), -math.inf)
            broken = Broken(
                distance=found.distance, class_=self._class(int(others.argmax())), pixels=found.image.tolist()
            )
        return Attack(
            class_=self._class(label),
            radius=radius,
            broken=broken,
            trials=[Trial(eps=t.epsilon, margin=t.margin, broken=t.broken) for t in found.trials],
            complete=found.complete,
            seconds=round(time.monotonic() - started, 3),
        )

    def _class(self, index: int) -> Class:
        return Class(index=index, name=self.class_names[index])


def _radii(certification: Certification) -> dict[str, float | None]:
    """The radii of the first image; None, as JSON has no infinity, where nothing is certified."""
    nothing = torch.full_like(certification.best_radii, -math.inf)
    columns = {
        "radius": certification.best_radii,
        "margin_radius": certification.radii.get("margin", nothing),
        "interval_radius": certification.radii[certification.names[-1]],
    }
    return {name: column[0].item() if column[0].isfinite() else None for name, column in columns.items()}
