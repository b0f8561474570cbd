"""The registry of attacks, and a sequence of attacks: each attacks the samples that survived the previous attacks."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.attacks.outcome import Attack, Attacked, other_class, run_attack
from linfnet.attacks.pgd import best_pgd, pgd
from linfnet.attacks.square import square_attack
from linfnet.boxes import inner_box
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon, format_epsilon, parse_epsilons
from linfnet.errors import ArgumentError, LinfnetError, require
from linfnet.inputs import Images, check_count, check_net, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top
from linfnet.ops import check_p
from linfnet.registry import Registry

BATCH, TOOLBOX_BATCH = 500, 256
# On the packaged net, gradients of p = 16 to 64 break most samples; p = 4 is too far from p = inf.
EXPONENTS = (16.0, 64.0)
# Number of runner-up classes that are also targeted one by one.
RIVALS = 3

ATTACKS: Registry[Attack] = Registry("attack")
"""All attacks by name; register your own attack with `@ATTACKS.register("name")`."""
# The cheapest attack is first. autoattack is not included because it needs an extra.
DEFAULT_ATTACKS = ("pgd", "best-pgd", "smoothed", "square")

ATTACKS.register("pgd")(pgd)
ATTACKS.register("best-pgd")(best_pgd)


@ATTACKS.register("smoothed")
def _smoothed(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    generator: torch.Generator,
    *,
    steps: int = 100,
    restarts: int = 2,
    exponents: Sequence[float] = EXPONENTS,
) -> Tensor:
    """Run `best_pgd` for each exponent p of the gradients: with the margin, with dlr, and with each runner-up class."""
    moved, left = images.clone(), torch.ones_like(labels, dtype=torch.bool)
    rivals = range(1, min(RIVALS, net.classes - 1) + 1)
    tries = [("margin", p, 0) for p in exponents] + [("dlr", p, 0) for p in exponents]
    search = partial(best_pgd, net, epsilon=epsilon, generator=generator, steps=steps, restarts=restarts)
    for objective, p, rival in tries + [("margin", p, k) for p in exponents for k in rivals]:
        found = search(images[left], labels[left], objective=objective, p=p, rival=rival)
        moved[left] = found
        with torch.no_grad():
            left[left.clone()] = label_on_top(net.frozen()(found), labels[left])
    return moved


@ATTACKS.register("square")
def _square(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    generator: torch.Generator,
    *,
    queries: int = 1000,
) -> Tensor:
    """Run the Square attack; its random numbers are drawn on the CPU."""
    source = torch.Generator().manual_seed(generator.initial_seed())
    return square_attack(net, images, labels, epsilon, queries=queries, generator=source)


def auto_attack(
    net: Classifier,
    images: Tensor,
    labels: Tensor,
    epsilon: Fraction,
    generator: torch.Generator,
    *,
    steps: int = 100,
    restarts: int = 5,
    queries: int = 5000,
) -> Tensor:
    """Run AutoAttack (Croce and Hein, 2020) of the Adversarial Robustness Toolbox, clamped to the exact ball.

    AutoAttack combines APGD on cross-entropy and on DLR, DeepFool and Square; needs the extra `autoattack`.

    Args:
        net: attacked at p = inf in eval mode, regardless of its current p and mode.
        images, labels, epsilon: as in `pgd`.
        generator: its seed becomes the seed of the global generator of NumPy, which the toolbox uses.
        steps: number of steps of APGD and DeepFool.
        restarts: number of starts of APGD and Square.
        queries: number of forward passes from each start of Square.
    """
    share = _first_share(*(1, *net.image_shape)[-2:])
    evasion: Any = require("art.attacks.evasion", "autoattack")
    classification: Any = require("art.estimators.classification", "autoattack")
    np.random.seed(generator.initial_seed() % 2**32)
    kind = "gpu" if images.device.type == "cuda" else "cpu"
    classifier = classification.PyTorchClassifier(
        net.frozen(),
        torch.nn.CrossEntropyLoss(),
        net.image_shape,
        net.classes,
        clip_values=(0.0, 1.0),
        device_type=kind,
    )
    ball: dict[str, Any] = {"norm": "inf", "eps": float(epsilon)}
    quiet: dict[str, Any] = {"batch_size": TOOLBOX_BATCH, "verbose": False}
    apgd = {"max_iter": steps, "nb_random_init": restarts, "eps_step": float(epsilon) / 4, **quiet}
    losses = ("cross_entropy", "difference_logits_ratio")
    four = [
        *(evasion.AutoProjectedGradientDescent(classifier, **ball, **apgd, loss_type=loss) for loss in losses),
        evasion.DeepFool(classifier, steps, epsilon=1e-3, nb_grads=net.classes, **quiet),
        evasion.SquareAttack(classifier, **ball, max_iter=queries, p_init=share, nb_restarts=restarts, verbose=False),
    ]
    attack = evasion.AutoAttack(classifier, **ball, eps_step=float(epsilon) / 4, attacks=four, batch_size=TOOLBOX_BATCH)
    found = attack.generate(images.cpu().numpy(), labels.cpu().numpy())
    lower, upper = inner_box(images, epsilon)
    return torch.clamp(torch.from_numpy(found).to(images), lower, upper)


def _first_share(rows: int, columns: int) -> float:
    """Return the share of the pixels that the first square of the toolbox's Square attack covers.

    The square must be smaller than the image: the toolbox draws its position from 0 to the remaining pixels, exclusive.

    >>> _first_share(28, 28), _first_share(4, 4)
    (0.8, 0.5625)
    """
    side = min(rows, columns) - 1
    if side < 1:
        raise ArgumentError(f"images have {rows} x {columns} pixels; expected at least 2 x 2 for AutoAttack")
    usual = 0.8
    return usual if round(math.sqrt(usual * rows * columns)) <= side else side**2 / (rows * columns)


@ATTACKS.register("autoattack")
def _auto_attack(net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, source: torch.Generator) -> Tensor:
    """Run AutoAttack with the default values of `auto_attack`, whatever the settings of other attacks are."""
    return auto_attack(net, images, labels, epsilon, source)


def known_attacks(
    names: Sequence[str] = DEFAULT_ATTACKS,
    *,
    steps: int = 100,
    restarts: int = 2,
    exponents: Sequence[float] = EXPONENTS,
    queries: int = 1000,
) -> dict[str, Attack]:
    """Return attacks of the registry by name; each is called with those settings that its signature accepts.

    Args:
        names: the attacks, in the order in which they run.
        steps: number of steps of the gradient attacks.
        restarts: number of starts of best-pgd and smoothed.
        exponents: values of p whose gradients the smoothed attack follows.
        queries: number of queries of the Square attack.

    >>> list(known_attacks(("square", "pgd"), steps=10))
    ['square', 'pgd']
    """
    for p in exponents:
        check_p(p)
    settings: dict[str, Any] = {"steps": steps, "restarts": restarts, "exponents": exponents, "queries": queries}
    for name in ("steps", "restarts", "queries"):
        check_count(name, settings[name])
    if "autoattack" in names:
        require("art.attacks.evasion", "autoattack")  # report a missing extra before the other attacks
    attacks: dict[str, Attack] = {}
    for name in names:
        accepted = accepted_settings(name) & settings.keys()
        attacks[name] = partial(ATTACKS[name], **{key: settings[key] for key in accepted})
        check_signature(attacks[name], name, ("net", "images", "labels", "epsilon", "generator"))
    return attacks


def check_signature(attack: Callable[..., object], name: str, arguments: Sequence[str]) -> None:
    """Raise an error unless a function can be called with these positional arguments."""
    try:
        inspect.signature(attack).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(
            f"attack {name!r} cannot be called with ({', '.join(arguments)}): {error}; see docs/extending.md"
        ) from None
    except ValueError:  # functions written in C may have no signature
        pass


def accepted_settings(name: str) -> Set[str]:
    """Return the names of the arguments that an attack of the registry accepts."""
    return inspect.signature(ATTACKS[name]).parameters.keys()


@torch.no_grad()
def attack_all(
    net: Classifier,
    images: Images,
    labels: Labels,
    epsilons: Epsilon | Sequence[Epsilon],
    attacks: Mapping[str, Attack],
    *,
    seed: int = 0,
    certified: Mapping[Fraction, Tensor] | None = None,
    report: Callable[[str, Fraction, int], None] = lambda name, epsilon, left: None,
) -> list[Attacked]:
    """Attack the correctly classified samples at each epsilon, in increasing order of epsilon.

    A sample that is broken at one epsilon counts as broken at all larger ones.

    Args:
        net, images, labels: as in `pgd`.
        epsilons: in pixel units.
        attacks: the attacks by name, in the order in which they run, as returned by `known_attacks`.
        seed: every attack gets a new generator with this seed.
        certified: for each epsilon bool [N]: samples that are not attacked, because it is proven that no attack breaks
            them; they count as survivors.
        report: called before each batch of an attack with its name, the epsilon and the number of samples that it has
            not yet attacked.
    """
    pixels, sizes = prepare_images(check_net(net), images), sorted(parse_epsilons(epsilons))
    truth = prepare_labels(labels, pixels, net.classes)
    check_count("seed", seed, 0)
    net = net.frozen()
    logits = torch.cat([net(part) for part in pixels.split(BATCH)])
    clean, prediction = label_on_top(logits, truth), logits.argmax(1)
    prediction[~clean] = other_class(logits[~clean], truth[~clean])
    survived, moved = clean.clone(), pixels.clone()
    results: list[Attacked] = []
    for epsilon in sizes:
        after: dict[str, float] = {}
        for name, attack in attacks.items():
            left = survived if certified is None else survived & ~certified[epsilon].to(survived.device)
            left = left.nonzero().flatten()
            generator = torch.Generator(pixels.device).manual_seed(seed)
            # At epsilon 0 no image can change. Misclassification by the random noise of a net is not an attack.
            for start in range(0, len(left) if epsilon else 0, BATCH):
                part = left[start : start + BATCH]
                report(name, epsilon, len(left) - start)
                found = run_attack(attack, net, pixels[part], truth[part], epsilon, generator, name)
                logits, kept = net.logits_and_kept(found, truth[part])
                lost = part[~kept]
                moved[lost], survived[lost] = found[~kept], False
                prediction[lost] = other_class(logits[~kept], truth[lost])
            after[name] = survived.double().mean().item()
        found = moved.clone().view(images.shape)
        results.append(Attacked(epsilon, clean, survived.clone(), after, found, prediction.clone()))
    return results


def check_sandwich(epsilon: Fraction, certified: Tensor, survived: Tensor) -> None:
    """Raise an error if a sample is certified [N] at epsilon but did not survive [N] an attack: a bug in linfnet."""
    wrong = (certified & ~survived).nonzero().flatten().tolist()
    if wrong:
        more = f" and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise LinfnetError(
            f"samples {wrong[:20]}{more} are certified at eps = {format_epsilon(epsilon)}, but an attack broke them: "
            "this is a bug, please report it"
        )


def parse_exponents(text: str) -> tuple[float, ...]:
    """Parse exponents such as `4,16,inf`.

    >>> parse_exponents("4, inf")
    (4.0, inf)
    """
    try:
        return tuple(check_p(float(part), "--p") for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--p is {text!r}; expected numbers of at least 1, such as 16,64 or inf") from None
