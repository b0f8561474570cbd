"""The figures behind the picture of the README: one digit with its certified ball, and the accuracies over epsilon.

All test images of MNIST are certified by the packaged net. PGD-100 attacks those that are classified correctly and not
certified at epsilon, since no attack can break a certified image. For one digit the benchmark looks for the closest
misclassified image. It writes records/ball.json, which tools/picture.py draws; it needs `linfnet data fetch mnist`.

    python benchmarks/ball.py
"""

import math
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from linfnet.attacks import best_pgd, closest_break, pgd
from linfnet.certificates import certify_images
from linfnet.certificates.rounding import float_above
from linfnet.data import ImageSet, load
from linfnet.files import write_json
from linfnet.nn import LinfNet
from linfnet.nn.label_margin import label_on_top
from linfnet.train import environment

NET = "mnist-small"
DIGIT = 0  # the first test image, a seven
BATCH = 500
STEPS = 100
CERTIFIED = [Fraction(k, 200) for k in range(101)]
ATTACKED = [Fraction(k, 40) for k in range(1, 20)]
RECORDS = Path(__file__).parent.parent / "records"


def levels(image: Tensor) -> list[str]:
    """Return the bytes of an image [1, H, W], rounded, as one hexadecimal string for each row."""
    return [bytes(row).hex() for row in (image[0] * 255).round().to(torch.uint8).tolist()]


def surviving(net: LinfNet, test: ImageSet, radii: Tensor, epsilon: Fraction) -> int:
    """Return how many images PGD-100 leaves; certified images are counted as left."""
    certified = radii >= float_above(epsilon)
    attacked = ((radii >= 0) & ~certified).nonzero().flatten()
    left = int(certified.sum())
    for part in attacked.split(BATCH):
        images, labels = test.pixels(part), test.labels[part]
        found = pgd(net, images, labels, epsilon, steps=STEPS, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            left += int(label_on_top(net(found), labels).sum())
    print(f"eps = {float(epsilon):g}: {int(certified.sum())} certified, {left} survived", flush=True)
    return left


def ball(net: LinfNet, test: ImageSet, radius: float) -> dict[str, object]:
    """Return the digit, four images in its ball (first the worst that an attack finds), and the closest break."""
    image, label = test.pixels(slice(DIGIT, DIGIT + 1)), test.labels[DIGIT : DIGIT + 1]
    generator = torch.Generator().manual_seed(0)
    inside = radius * (1 - 1e-6)  # float32 images may not be further away than the radius
    signs = [torch.randint(0, 2, image.shape, generator=generator) * 2.0 - 1 for _ in range(2)]
    stripes = ((torch.arange(28) // 2 % 2) * 2.0 - 1).expand(image.shape)
    worst = best_pgd(net, image, label, inside, steps=STEPS, p=16.0, generator=generator)
    images = [worst, *((image + inside * sign).clamp(0, 1) for sign in (*signs, stripes))]
    found = closest_break(net, image[0], int(label), radius=radius, steps=STEPS)
    if found.image is None:
        raise RuntimeError("no misclassified image was found")
    with torch.no_grad():
        predictions = [int(net(x).argmax()) for x in (*images, found.image.unsqueeze(0))]
    return {
        "index": DIGIT,
        "label": int(label),
        "radius": radius,
        "image": levels(image[0]),
        "inside": [levels(x[0]) for x in images],
        "predictions_inside": predictions[:-1],
        "closest": {"distance": found.distance, "prediction": predictions[-1], "image": levels(found.image)},
    }


def main() -> None:
    net, test = LinfNet.load(NET), load("mnist", "test")
    certified = certify_images(net, zip(test.pixels().split(BATCH), test.labels.split(BATCH), strict=True))
    radii = certified.best_radii
    digit = ball(net, test, math.floor(radii[DIGIT].item() * 1e4) / 1e4)
    record = {
        "what": f"the packaged net {NET} on all {len(test)} test images of MNIST: images certified by any "
        "certificate, and images left by PGD-100, over epsilon; one digit and images in its certified ball",
        "environment": environment(),
        "net": NET,
        "images": len(test),
        "clean": int((radii >= 0).sum()),
        "certified": {str(eps): int((radii >= float_above(eps)).sum()) for eps in CERTIFIED},
        "attacked": {str(eps): surviving(net, test, radii, eps) for eps in ATTACKED},
        "digit": digit,
    }
    write_json(RECORDS / "ball.json", record)


if __name__ == "__main__":
    main()
