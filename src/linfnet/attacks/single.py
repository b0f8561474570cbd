"""`linfnet.attack`: one attack on labelled images, by name or by a function of the user."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from linfnet.attacks.outcome import Attack, Attacked, other_class, run_attack
from linfnet.attacks.pgd import pgd
from linfnet.attacks.suite import ATTACKS, BATCH, EXPONENTS, accepted_settings, check_signature, known_attacks
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, parse_epsilon
from linfnet.errors import ArgumentError
from linfnet.inputs import Images, check_count, check_net, net_device, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.frozen import without_gradients
from linfnet.nn.label_margin import label_on_top
from linfnet.ops import check_p

UserAttack = Callable[[Classifier, Tensor, Tensor, float], Any]
"""(net at p = inf in eval mode, images, labels, eps) -> images within eps.

Images and labels are on the device of the net. The library computes the success itself and verifies that the result is
in [0, 1] and within eps: deviations of up to 1e-6, from rounding, are corrected; larger ones raise an error. The
function may change its arguments in place, and p and the mode of the net, but not the weights and buffers of the net.
"""


@dataclass(frozen=True)
class NamedAttack:
    """An attack with all its settings."""

    name: str
    steps: int
    """The number of steps, 0 for attacks without this setting."""
    run: Attack

    def perturb(
        self, net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, generator: torch.Generator
    ) -> Tensor:
        """Return attacked images in [0, 1] and within epsilon, in exact arithmetic."""
        # At epsilon 0 no image can change, and attacks of other libraries do not accept it.
        if not len(images) or not epsilon:
            return images.clone()
        return run_attack(self.run, net, images, labels, epsilon, generator, self.name)


def named_attack(
    method: str | UserAttack,
    *,
    steps: int = 100,
    restarts: int = 2,
    exponents: Sequence[float] = EXPONENTS,
    queries: int = 1000,
) -> NamedAttack:
    """Return an attack of the registry, or a function of the user, with its settings."""
    if not isinstance(method, str):
        if not callable(method):
            known = ", ".join(ATTACKS.names())
            raise ArgumentError(f"the attack is a {type(method).__name__}; expected a function or one of {known}")
        name = getattr(method, "__name__", type(method).__name__)
        check_signature(method, name, ("net", "images", "labels", "eps"))
        return NamedAttack(re.sub(r"[^\w-]+", "", name) or "attack", 0, partial(_without_generator, method))
    chosen = known_attacks((method,), steps=steps, restarts=restarts, exponents=exponents, queries=queries)
    return NamedAttack(method, steps if "steps" in accepted_settings(method) else 0, chosen[method])


def _without_generator(
    attack: UserAttack, net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, source: torch.Generator
) -> Tensor:
    return attack(net, images, labels, float(epsilon))


def attack(
    net: Classifier,
    images: Images,
    labels: Labels,
    eps: Epsilon,
    method: str | UserAttack = "pgd",
    *,
    steps: int = 100,
    restarts: int = 2,
    exponents: Sequence[float] = EXPONENTS,
    queries: int = 1000,
    seed: int = 0,
    p: float | None = None,
    advance: Callable[[int], None] = lambda images: None,
) -> Attacked:
    """Search for a misclassified image within epsilon of each image.

    The certified net is attacked: at p = inf in eval mode, regardless of its current p and mode, on the device of the
    net. Images that are already misclassified are returned unchanged and count as a success, so the accuracy under
    attack, `found.robust`, is never above the clean accuracy. The tensors of the result are on the device of `images`.

    Args:
        net: a net of any system, or your own module in `Classifier.wrap`.
        images: [N, C, H, W] in [0, 1], a tensor or a NumPy array of the dtype of the net (float32).
        labels: integers [N], the true classes.
        eps: the largest change of a pixel: `"8/255"`, a number in [0, 1], a `Fraction`, or a ratio `(8, 255)`.
        method: `pgd`, `best-pgd`, `smoothed`, `square`, `autoattack` (needs an extra), another name in `ATTACKS`, or a
            function `(net, images, labels, eps) -> images`. A result outside the ball is an error (see `UserAttack`).
        steps: number of steps of gradient attacks.
        restarts: number of starts of `best-pgd` and `smoothed`.
        exponents: values of p whose gradients `smoothed` follows.
        queries: number of queries of `square`.
        seed: the random numbers for batch k of 500 images are drawn with seed + k.
        p: attack the net at this exponent instead of infinity; only with `pgd` or a function.
        advance: called with the number of images after each batch.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> found = attack(net, torch.tensor([0.1, 0.4]).view(2, 1, 1, 1), [0, 0], "0.2", steps=10)
    >>> found.success, found.prediction
    (tensor([False,  True]), tensor([0, 1]))
    """
    checked, epsilon = check_net(net), parse_epsilon(eps)
    check_count("seed", seed, 0)
    chosen = named_attack(method, steps=steps, restarts=restarts, exponents=exponents, queries=queries)
    if p is not None and not math.isinf(check_p(p)):
        if method != "pgd" and isinstance(method, str):
            raise ArgumentError(f"p is {p:g}, method {method!r}; expected method 'pgd' or a function for a finite p")
        if method == "pgd":
            chosen = NamedAttack("pgd", steps, partial(pgd, steps=steps, as_is=True))
    pixels = prepare_images(checked, images, move=False)
    truth = prepare_labels(labels, pixels, checked.classes)
    parts: list[tuple[Tensor, ...]] = []
    for number, start in enumerate(range(0, max(len(pixels), 1), BATCH)):
        own = slice(start, start + BATCH)
        parts.append(_attack_batch(checked, pixels[own], truth[own], epsilon, chosen, seed + number, p))
        advance(len(parts[-1][0]))
    clean, survived, moved, prediction = (torch.cat(columns) for columns in zip(*parts, strict=True))
    after = {chosen.name: survived.double().mean().item()}
    return Attacked(epsilon, clean, survived, after, moved.view(images.shape), prediction)


@torch.no_grad()
def _attack_batch(
    net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, chosen: NamedAttack, seed: int, p: float | None
) -> tuple[Tensor, ...]:
    """Return the clean and survived flags, the attacked images and their classes, on the device of the images."""
    device = net_device(net)
    pixels, truth, generator = images.to(device), labels.to(device), torch.Generator(device).manual_seed(seed)
    net = without_gradients(net.frozen())
    if p is not None:
        net.p = p
    clean = label_on_top(net(pixels), truth)
    moved = pixels.clone()
    moved[clean] = chosen.perturb(net, pixels[clean], truth[clean], epsilon, generator)
    logits, kept = net.logits_and_kept(moved, truth)
    # At epsilon 0 no image changes, so correct samples stay correct, even if the net draws new noise.
    survived = clean & kept if epsilon else clean
    prediction = torch.where(survived, logits.argmax(1), other_class(logits, truth))
    return tuple(column.to(images.device) for column in (clean, survived, moved, prediction))
