"""Errors of smoothing: certify images of a classifier whose true radii are known, and count radii that are too large.

Claim: at most alpha of the certificates are wrong. The base net is linear with weights of equal magnitude, so that the
smoothed class changes exactly at the distance |w x + b| / |w|_1 in l_inf, which is the l2 distance divided by sqrt(d):
no slack hides an error. The images have true probabilities from 0.5 to 0.999. The class that the net predicts is
certified, by `linfnet.certify`; a certificate is wrong if its radius is above the true one, which is negative for the
other class. The expected number of errors follows from the binomial distribution; it is below alpha because counts are
whole numbers.

    python benchmarks/smoothing.py [--images 10000] [--samples 1000] [--record records/smoothing.json]
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

import linfnet
from linfnet.files import write_json
from linfnet.systems.smoothing import SmoothedNet, clopper_pearson
from linfnet.train import environment

ALPHAS = (0.001, 0.01, 0.05, 0.1)
SHAPE, SIGMA = (1, 8, 8), 0.25


class LinearBase(SmoothedNet):
    """A base net with two classes: class 1 where the mean of the pixels, with signs, is above a threshold."""

    def base_logits(self, noisy: Tensor) -> Tensor:
        score = offset(noisy)
        return torch.stack([-score, score], 1).float()


def offset(images: Tensor) -> Tensor:
    """Return (w x + b) / |w|_1 in float64: the signed l_inf distance from the boundary."""
    pixels = images.flatten(1).double()
    signs = 1 - 2 * (torch.arange(pixels.shape[1]) % 2).double()
    return (pixels * signs).mean(1) - 0.05


def draw_images(count: int, seed: int) -> Tensor:
    """Return float32 images whose true probabilities are spread over 0.5 to 0.999, on both sides of the boundary."""
    source = torch.Generator().manual_seed(seed)
    images = 0.25 + 0.5 * torch.rand(count, *SHAPE, generator=source)
    share = 0.5 + 0.499 * torch.rand(count, generator=source, dtype=torch.float64)
    side = torch.where(torch.rand(count, generator=source) < 0.5, 1.0, -1.0)
    wanted = side * torch.special.ndtri(share) * SIGMA / math.sqrt(math.prod(SHAPE))
    signs = (1 - 2 * (torch.arange(math.prod(SHAPE)) % 2)).view(SHAPE)
    return images + ((wanted - offset(images)).view(-1, 1, 1, 1) * signs).float()


def expected_errors(shares: Tensor, samples: int, alpha: float) -> float:
    """Return the expected number of errors for the true shares [N] of the predicted classes, from the binomial.

    An error is a Clopper-Pearson bound above the share and above one half.
    """
    bounds = torch.tensor([clopper_pearson(k, samples, alpha) for k in range(samples + 1)], dtype=torch.float64)
    first = torch.searchsorted(bounds, shares.clamp(min=0.5), right=True)  # the smallest count that is an error
    counts = torch.arange(samples + 1, dtype=torch.float64)
    whole = torch.tensor(samples + 1.0, dtype=torch.float64)
    ways = torch.lgamma(whole) - torch.lgamma(counts + 1) - torch.lgamma(whole - counts)
    total = 0.0
    for share, least in zip(shares.tolist(), first.tolist(), strict=True):
        if least <= samples:
            terms = ways + counts * math.log(share) + (samples - counts) * math.log1p(-share)
            total += terms[least:].exp().sum().item()
    return total


def most_errors(count: int, alpha: float) -> int:
    """Return the number that errors of probability alpha exceed with a probability below 0.001."""
    low, high = int(alpha * count), count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if clopper_pearson(middle, count, 0.001) <= alpha else (low, middle)
    return low


def measure(alpha: float, count: int, samples: int, seed: int) -> dict[str, object]:
    """Return one row of the record."""
    net = LinearBase(SHAPE, 2, "small", SIGMA, samples, alpha, votes=64).eval()
    images = draw_images(count, seed)
    start = time.perf_counter()
    found = linfnet.certify(net, images)
    seconds = time.perf_counter() - start
    away = offset(images)
    true = torch.where(found.prediction == 1, away, -away)  # negative for a class that is not the smoothed class
    wrong, positive = found.radius > true, found.radius > 0
    shares = torch.special.ndtr(true * math.sqrt(math.prod(SHAPE)) / SIGMA)
    row: dict[str, object] = {
        "alpha": alpha,
        "images": count,
        "errors": int((wrong & positive).sum()),
        "errors_expected": round(expected_errors(shares, samples, alpha), 1),
        "alpha_times_images": alpha * count,
        "exceeded_with_probability_0.001": most_errors(count, alpha),
        "radii_above_0": int(positive.sum()),
        "predicted_other_than_smoothed_class": int((true < 0).sum()),
        "median_radius_by_true_radius": round((found.radius / true)[positive].median().item(), 4),
        "seconds": round(seconds, 1),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="errors of smoothing")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--record", type=Path, default=None)
    options = parser.parse_args()
    rows = [measure(alpha, options.images, options.samples, seed) for seed, alpha in enumerate(ALPHAS)]
    if options.record is not None:
        what = "certified radii of a smoothed linear classifier that are above its true radii"
        record = {"what": what, "samples": options.samples, "sigma": SIGMA, "rows": rows, "environment": environment()}
        write_json(options.record, record)


if __name__ == "__main__":
    main()
