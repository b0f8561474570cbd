"""The result of an attack, and the call of an attack with a check that its images are within epsilon."""

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.data.arrays import as_tensor
from linfnet.epsilon import format_epsilon
from linfnet.errors import ArgumentError
from linfnet.nn import Classifier

# Attacks of other libraries round x + eps to float32: a result may be this far outside the ball, and is moved inside.
ROUNDING = 1e-6

Attack = Callable[[Classifier, Tensor, Tensor, Fraction, torch.Generator], Tensor]
"""(net, images, labels, epsilon, generator on the device of the images) -> images within epsilon.

An attack may accept the keyword arguments of `known_attacks`: steps, restarts, exponents, queries. It may change its
images and labels in place, and p and the mode of the net, but not the weights and buffers of the net.
"""


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
        """The share of samples that survived: the accuracy under attack; NaN without samples."""
        return self.survived.double().mean().item()

    def __repr__(self) -> str:
        attacks, count = ", ".join(self.after), len(self.survived)
        broken = int((self.clean & ~self.survived).sum())
        return f"Attacked({attacks} at eps = {format_epsilon(self.epsilon)}: {broken} of {count} images broken)"


def run_attack(
    attack: Attack,
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    generator: torch.Generator,
    name: str,
) -> Tensor:
    """Return the images that an attack found, moved into the exact ball by at most `ROUNDING` per pixel.

    Raise an error if they are further outside, since a misclassified image outside the ball proves nothing. The attack
    gets copies of the images and labels, and an error is raised if it changes the net.
    """
    with _unchanged(net, name), torch.enable_grad():
        found = attack(net, images.clone(), labels.clone(), epsilon, generator)
    return _into_ball(found, images, epsilon, name)


@contextlib.contextmanager
def _unchanged(net: Classifier, name: str) -> Generator[None]:
    """Context that restores p and the mode of the net, and raises an error if its weights or buffers have changed."""
    modes = [(module, module.training) for module in net.modules()]
    exponents = [(layer, layer.p) for layer in net.distance_layers()]
    # Versions of tensors are not compared: changes by `tensor.data` do not count, and a restored weight does.
    before = {key: tensor.clone() for key, tensor in _tensors(net).items()}
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, p in exponents:
            layer.p = p
    after = _tensors(net)
    changed = [key for key in (*before, *after) if key not in before or not _same(before[key], after.get(key))]
    if changed:
        raise ArgumentError(f"attack {name!r} changed {changed[0]!r} of the net; expected that the net stays the same")


def _tensors(net: Classifier) -> dict[str, Tensor]:
    return {key: tensor.detach() for key, tensor in (*net.named_parameters(), *net.named_buffers())}


def _same(before: Tensor, after: Tensor | None) -> bool:
    if after is None or (before.shape, before.dtype, before.device) != (after.shape, after.dtype, after.device):
        return False
    return torch.equal(before, after) or torch.allclose(before, after, rtol=0, atol=0, equal_nan=True)


def _into_ball(found: object, images: Tensor, epsilon: Fraction, name: str) -> Tensor:
    if not isinstance(found, Tensor | np.ndarray) or tuple(found.shape) != tuple(images.shape):
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor | np.ndarray) else f"a {type(found).__name__}"
        raise ArgumentError(f"attack {name!r} returned {got}; expected images of shape {tuple(images.shape)}")
    try:
        moved = as_tensor(found).to(images)
    except ArgumentError as error:
        raise ArgumentError(f"attack {name!r} returned an invalid result: {error}") from None
    lower, upper = inner_box(images, epsilon)
    inside = torch.clamp(moved, lower, upper)
    if not bool(((moved - inside).abs() <= ROUNDING).all()):  # false for NaN
        raise ArgumentError(f"attack {name!r} left the ball of eps = {format_epsilon(epsilon)}: its result is invalid")
    return inside


def other_class(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the class [n] with the largest logit other than the label."""
    return logits.scatter(1, labels.unsqueeze(1), -torch.inf).argmax(1)
