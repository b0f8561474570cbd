"""AutoAttack (Croce and Hein, 2020) through the Adversarial Robustness Toolbox, the extra `autoattack`."""

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.errors import require
from linfnet.nn import Classifier

BATCH = 256


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
    """APGD on cross-entropy and DLR, DeepFool and Square of the toolbox; results are clamped to the exact ball.

    Args:
        net: attacked at its present p.
        images: [N, C, H, W] in [0, 1].
        labels: [N].
        epsilon: exact, in pixel units.
        generator: its seed is the seed of the toolbox, which uses the global generator of NumPy.
        steps: steps of APGD and DeepFool.
        restarts: starts of APGD and Square.
        queries: forward passes of each start of Square.
    """
    evasion: Any = require("art.attacks.evasion", "autoattack")
    classification: Any = require("art.estimators.classification", "autoattack")
    np.random.seed(generator.initial_seed() % 2**32)
    kind = "gpu" if images.device.type == "cuda" else "cpu"
    classifier = classification.PyTorchClassifier(
        net, torch.nn.CrossEntropyLoss(), net.image_shape, net.classes, clip_values=(0.0, 1.0), device_type=kind
    )
    ball: dict[str, Any] = {"norm": "inf", "eps": float(epsilon)}
    apgd = {"max_iter": steps, "nb_random_init": restarts, "eps_step": float(epsilon) / 4, "batch_size": BATCH}
    four = [
        *(
            evasion.AutoProjectedGradientDescent(classifier, **ball, **apgd, loss_type=loss, verbose=False)
            for loss in ("cross_entropy", "difference_logits_ratio")
        ),
        evasion.DeepFool(classifier, steps, epsilon=1e-3, nb_grads=net.classes, batch_size=BATCH, verbose=False),
        evasion.SquareAttack(classifier, **ball, max_iter=queries, p_init=0.8, nb_restarts=restarts, verbose=False),
    ]
    attack = evasion.AutoAttack(classifier, **ball, eps_step=float(epsilon) / 4, attacks=four, batch_size=BATCH)
    found = attack.generate(images.cpu().numpy(), labels.cpu().numpy())
    lower, upper = inner_box(images, epsilon)
    return torch.clamp(torch.from_numpy(found).to(images), lower, upper)
