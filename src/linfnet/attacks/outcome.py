"""The result of an attack, and the check that its images are within epsilon."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError

# Attacks of other libraries round x + eps to float32: a result may be this far outside the ball, and is moved inside.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Attacked:
    """The result of attacks on N samples at one epsilon."""

    epsilon: Fraction
    clean: Tensor
    """bool [N]: which samples are classified correctly without a perturbation."""
    survived: Tensor
    """bool [N]: which samples are classified correctly even after all attacks."""
    after: dict[str, float]
    """The share of samples that have survived so far, after each attack by name."""
    images: Tensor
    """[N, C, H, W], in [0, 1] and within epsilon: the misclassified image if the attack succeeded. If it failed: the
    last image that `attack` tried; for `attack_all`, the original image."""
    prediction: Tensor
    """int64 [N]: the class that the net predicts for each of `images`. If the label and another class have the same
    logit, the sample is misclassified as the other class."""

    @property
    def success(self) -> Tensor:
        """bool [N]: which samples are misclassified after the attack, including those misclassified before it."""
        return ~self.survived

    @property
    def robust(self) -> float:
        """The share of samples that survived: the accuracy under attack."""
        return self.survived.double().mean().item()

    def __repr__(self) -> str:
        attacks, count = ", ".join(self.after), len(self.survived)
        broken = int((self.clean & ~self.survived).sum())
        return f"Attacked({attacks} at eps = {format_epsilon(self.epsilon)}: {broken} of {count} images broken)"


def into_ball(found: object, images: Tensor, epsilon: Fraction, name: str) -> Tensor:
    """Return the images that an attack found, moved into the exact ball by at most `ROUNDING` per pixel.

    Raise an error if they are further outside, since a misclassified image outside the ball proves nothing.
    """
    if not isinstance(found, Tensor | np.ndarray) or tuple(found.shape) != tuple(images.shape):
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor | np.ndarray) else f"a {type(found).__name__}"
        raise ArgumentError(f"attack {name!r} returned {got}; expected images of shape {tuple(images.shape)}")
    moved = torch.as_tensor(found).detach().to(images)
    lower, upper = inner_box(images, epsilon)
    inside = torch.clamp(moved, lower, upper)
    if not bool(((moved - inside).abs() <= ROUNDING).all()):  # false for NaN
        raise ArgumentError(f"attack {name!r} left the ball of eps = {format_epsilon(epsilon)}: its result is invalid")
    return inside


def other_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class [n] with the largest logit other than the label."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).argmax(1)
