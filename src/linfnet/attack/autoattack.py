"""AutoAttack (Croce and Hein, 2020) through the Adversarial Robustness Toolbox, the extra `autoattack`."""

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.nn import Classifier
from linfnet.perturbation import inner_box


def auto_attack(
    net: Classifier, images: Tensor, labels: Tensor, epsilon: Fraction, generator: torch.Generator
) -> Tensor:
    """APGD on cross-entropy and DLR, DeepFool and Square, as the toolbox runs them, put back into the exact ball.

    Args:
        net: attacked as it stands.
        images: [N, C, H, W] in [0, 1].
        labels: [N].
        epsilon: exact, in pixel units.
        generator: gives the seed of the toolbox, which draws from NumPy's global generator.
    """
    try:
        evasion: Any = importlib.import_module("art.attacks.evasion")
        classification: Any = importlib.import_module("art.estimators.classification")
    except ImportError:
        raise LinfnetError("AutoAttack needs the toolbox: pip install 'linfnet[autoattack]'") from None
    np.random.seed(generator.initial_seed() % 2**32)
    kind = "gpu" if images.device.type == "cuda" else "cpu"
    classifier = classification.PyTorchClassifier(
        net, torch.nn.CrossEntropyLoss(), net.image_shape, net.classes, clip_values=(0.0, 1.0), device_type=kind
    )
    attack = evasion.AutoAttack(classifier, norm="inf", eps=float(epsilon), eps_step=float(epsilon) / 4, batch_size=256)
    found = attack.generate(images.cpu().numpy(), labels.cpu().numpy())
    lower, upper = inner_box(images, epsilon)
    return torch.clamp(torch.from_numpy(found).to(images), lower, upper)
