"""The computations behind the API for one net: class, certified radii and attack."""

import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import closest_break, minimal, other_class, strongest_within
from linfnet.certificates import certify_images
from linfnet.errors import LinfnetError, printable
from linfnet.nn import count_parameters
from linfnet.nn.model_path import class_names, find_model
from linfnet.serve.decoder import SMALL_WORK, Decoder
from linfnet.serve.samples import read_samples
from linfnet.serve.schemas import Attack, Class, Model, Perturbed, Prediction, Score, Trial
from linfnet.systems import load_model
from linfnet.version import __version__

# Time limit of an attack in seconds; it then returns the closest image found so far.
ATTACK_SECONDS = 20.0


class Service:
    """A net and a copy that shares its weights: the attack changes p of the copy while another thread certifies."""

    def __init__(self, model: Path) -> None:
        folder = find_model(model)
        self.name = printable(folder.resolve().name)
        self.net = load_model(folder)
        names = class_names(folder, self.net.classes)
        self.classes = [Class(index=k, name=name) for k, name in enumerate(names)]
        shared = {id(tensor): tensor for tensor in (*self.net.parameters(), *self.net.buffers())}
        self.attacked = copy.deepcopy(self.net, shared)
        # Pictures that take long to decode do not delay others.
        self.decoder, self.costly_decoder = Decoder(SMALL_WORK), Decoder()
        self.samples, self.sample_files = read_samples(self.net.image_shape, self.classes)

    def describe(self) -> Model:
        """Describe the net."""
        digits = all(one.name == str(one.index) for one in self.classes)
        return Model(
            name=self.name,
            linfnet=__version__,
            image_shape=list(self.net.image_shape),
            class_names=[one.name for one in self.classes],
            system=self.net.system,
            parameters=count_parameters(self.net),
            lipschitz=self.net.lipschitz,
            arithmetic=self.net.arithmetic,
            confidence=self.net.confidence,
            guarantee=self.net.guarantee,
            fit="digit" if digits and self.net.image_shape[0] == 1 else "crop",
            samples=self.samples,
        )

    def predict(self, image: Tensor) -> Prediction:
        """Classify and certify pixels [C, H, W] in [0, 1]."""
        certification = certify_images(self.net, [(image.unsqueeze(0), None)])
        with torch.no_grad(), self.net.at_infinity():
            logits = self.net(image.unsqueeze(0))[0].double()
        return Prediction(
            class_=self.classes[int(certification.predictions)],
            runner_up=self.classes[int(certification.runners_up)],
            radius=_radius(certification.best_radii),
            margin_radius=_radius(certification.radii.get("margin")),
            interval_radius=_radius(certification.radii.get("interval")),
            guarantee=certification.guarantee,
            scores=[
                Score(index=one.index, name=one.name, logit=logit)
                for one, logit in zip(self.classes, logits.tolist(), strict=True)
            ],
            pixels=image.tolist(),
        )

    def attack(self, image: Tensor, steps: int, stop: Callable[[], bool], eps: float | None = None) -> Attack:
        """Search for the closest misclassified image, or attack within one `eps`.

        `stop` and the time limit end the search early.
        """
        started = time.monotonic()
        # Certify with the copy of the net, which only the attack's thread uses.
        certification = certify_images(self.attacked, [(image.unsqueeze(0), None)])
        label, radius = int(certification.predictions), _radius(certification.best_radii)

        def out_of_time() -> bool:
            return stop() or time.monotonic() - started > ATTACK_SECONDS

        strongest = None
        if eps is None:
            found = closest_break(self.attacked, image, label, radius=radius or 0.0, steps=steps, stop=out_of_time)
            trials, complete = found.trials, found.complete
            broken = None if found.image is None else self._perturbed(image, found.image, label, broken=True)
        else:
            certified = radius is not None and radius >= eps
            within = strongest_within(
                self.attacked, image, label, eps, certified=certified, steps=steps, stop=out_of_time
            )
            trials, complete = (minimal.Trial(eps, within.margin, within.broken),), within.complete
            strongest = self._perturbed(image, within.image, label, within.broken)
            broken = strongest if within.broken else None
        if self.net.arithmetic == "float32" and broken and broken.distance < (radius or 0.0):
            raise LinfnetError(
                f"a change of {broken.distance!r} breaks the certified radius {radius!r}; please report this bug"
            )
        return Attack(
            class_=self.classes[label],
            radius=radius,
            guarantee=certification.guarantee,
            broken=broken,
            strongest=strongest,
            trials=[Trial(eps=t.epsilon, margin=t.margin, broken=t.broken) for t in trials],
            complete=complete,
            seconds=round(time.monotonic() - started, 3),
        )

    def _perturbed(self, image: Tensor, moved: Tensor, label: int, broken: bool) -> Perturbed:
        if broken:
            with torch.no_grad(), self.attacked.at_infinity():
                logits = self.attacked(moved.unsqueeze(0))
            # In a tie, argmax may return the label: report the best of the other classes.
            label = int(other_class(logits, torch.tensor([label])))
        distance = (moved.double() - image.double()).abs().max().item()
        return Perturbed(distance=distance, class_=self.classes[label], pixels=moved.tolist())


def _radius(radii: Tensor | None) -> float | None:
    """Return the radius of the only image, or None if nothing is certified, because JSON has no infinity."""
    return radii.item() if radii is not None and radii.isfinite() else None
