"""Foolbox attacks a packaged net: no image that is certified at eps is broken."""

import foolbox
import torch
import torch.nn.functional as F

import linfnet

EPS = "0.1"

# The packaged 8 x 8 digits, enlarged to 18 x 18 pixels with a border of 5: the net has never seen such images.
net = linfnet.load_model("mnist-small")
digits = linfnet.load("digits", "test")
images = F.pad(F.interpolate(digits.pixels(), size=(18, 18), mode="bicubic").clamp(0, 1), (5, 5, 5, 5))
labels = digits.labels


def foolbox_pgd(net: linfnet.Classifier, images: torch.Tensor, labels: torch.Tensor, eps: float) -> torch.Tensor:
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device=images.device)
    return foolbox.attacks.LinfPGD(steps=20)(model, images, labels, epsilons=eps)[1]


proof = linfnet.certify(net, images, labels)
found = linfnet.attack(net, images, labels, EPS, foolbox_pgd)
assert not (found.success & proof.at(EPS)).any(), "a certified image was broken"

certified, clean = (flags.double().mean().item() for flags in (proof.at(EPS), proof.prediction == labels))
print(f"foolbox broke {int((found.clean & found.success).sum())} of {len(images)} digits within {EPS}")
print(f"certified {certified:.3f} <= attacked {found.robust:.3f} <= clean {clean:.3f}")
