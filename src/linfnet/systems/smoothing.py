"""Randomised smoothing: a majority vote under Gaussian noise, certified in l2 by sampling and converted to l_inf.

The noise of a certificate is determined by the image: by a digest of its pixels. So the radius of an image is the same
alone and in any batch, and asking again does not give it another chance. A certificate is wrong with probability at
most alpha for each image that was not chosen with knowledge of this noise.

Before noise is added, pixels can be clamped and averaged over blocks. Both maps are monotone, so the images within
epsilon become a box, and the l_inf radius is the largest epsilon for which this box lies in the certified l2 ball.
Where pixels are mostly black or white, as in MNIST, the box is far smaller than that of the pixels.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from statistics import NormalDist
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.boxes import check_images
from linfnet.certificates.rounding import float_above
from linfnet.data import SetInfo
from linfnet.errors import ArgumentError, number
from linfnet.nn import Normalize
from linfnet.nn.classifier import Classifier
from linfnet.nn.nonexpansive import modules_of, name_in
from linfnet.nn.unchanged import LABELS, check_hooks, check_tensors, overridden
from linfnet.recipes import Recipe, options_from_mapping
from linfnet.schedules import StepState
from linfnet.systems.layers import check_architecture, conv_layers
from linfnet.systems.system import OBJECTIVE, RELAXATION, SYSTEMS, System, step_source

# Noisy copies in one pass of the base net. All copies of a pass belong to the same image: a matrix product may round
# differently in another batch, and the radius of an image must not depend on the other images.
COPIES = 200
SETTINGS = ("architecture", "sigma", "samples", "alpha", "votes")
PREPARATION = ("low", "high", "pool")
# Modules that map each copy to an output that depends on this copy alone, if batch norm uses its running means.
_LAYERS = frozenset(
    (nn.Sequential, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Linear, Normalize)
)


@cache
def clopper_pearson(successes: int, trials: int, alpha: float) -> float:
    """Return a lower bound, with confidence 1 - alpha, on the success probability of independent trials.

    The bound is the p for which at least `successes` successes have probability alpha. It is found by bisection and
    rounded down.

    >>> round(clopper_pearson(1000, 1000, 0.001), 6) == round(0.001 ** (1 / 1000), 6)
    True
    """
    if successes == 0:
        return 0.0
    counts = torch.arange(successes, trials + 1, dtype=torch.float64)
    whole = torch.tensor(trials + 1.0, dtype=torch.float64)
    ways = torch.lgamma(whole) - torch.lgamma(counts + 1) - torch.lgamma(whole - counts)
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2
        tail = torch.logsumexp(ways + counts * math.log(p) + (trials - counts) * math.log1p(-p), 0).item()
        low, high = (p, high) if tail < math.log(alpha) else (low, p)
    return max(low - 1e-12, 0.0)


class SmoothedNet(Classifier):
    """The class that a convolutional net predicts most often for noisy copies of an image.

    `forward` averages probabilities over a few noisy copies. It uses the same noise in each call, so that it can be
    differentiated and attacked. `certified_radius` counts predictions for many copies with other noise.

    Args:
        architecture: the base net, a key of `linfnet.systems.layers.ARCHITECTURES`; it has batch norm.
        sigma: standard deviation of the noise, in pixel units.
        samples: number of noisy copies of each image for a certificate.
        alpha: probability that a certificate is wrong.
        votes: number of noisy copies over which `forward` averages.
        low: pixels below it are raised to it before noise is added.
        high: pixels above it are lowered to it before noise is added.
        pool: blocks of pool x pool pixels are averaged before noise is added. For the other arguments, see
            `Classifier`.
    """

    system: ClassVar[str] = "smoothing"
    certificate_names: ClassVar[tuple[str, ...]] = ("smoothing",)
    cheap: ClassVar[bool] = False

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        architecture: str,
        sigma: float,
        samples: int,
        alpha: float,
        votes: int,
        low: float = 0.0,
        high: float = 1.0,
        pool: int = 1,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__(image_shape, classes, mean=mean, std=std)
        self.architecture, self.sigma, self.samples, self.alpha, self.votes = architecture, sigma, samples, alpha, votes
        self.low, self.high, self.pool = low, high, pool
        options_from_mapping(Smoothing, self.settings(), "system")  # a config.json has the same ranges as a recipe
        layers, features = conv_layers(architecture, image_shape, batch_norm=True)
        height, width = image_shape[1:]
        if height % pool or width % pool:
            raise ArgumentError(f"system.pool is {pool}; expected a divisor of the image size, {height} x {width}")
        self.base = nn.Sequential(layers, nn.Linear(features, classes))

    @property
    def confidence(self) -> float:
        return 1 - self.alpha

    def prepared(self, images: Tensor) -> Tensor:
        """Return images [B, C, H, W] with clamped pixels, averaged over blocks: [B, C, H / pool, W / pool].

        Gradients ignore the clamping: with its own gradient of 0, attacks would never move a clamped pixel.
        """
        clamped = images.detach().clamp(self.low, self.high) + (images - images.detach())
        return clamped if self.pool == 1 else F.avg_pool2d(clamped, self.pool)

    def base_logits(self, noisy: Tensor) -> Tensor:
        """Return the base net's logits [B, K] for prepared images with noise; pixels may be outside [0, 1]."""
        if self.pool > 1:  # each block is shown to the net at its size in the image
            noisy = F.interpolate(noisy, scale_factor=self.pool)
        return self.base(self.normalize(noisy))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, C, H, W] in [0, 1] to the logarithms [B, K] of the mean probabilities over the votes."""
        source, prepared = torch.Generator().manual_seed(0), self.prepared(self.check_shape(images))
        noise = torch.randn(self.votes, *prepared.shape[1:], generator=source, dtype=torch.float32)
        votes = [self.base_logits(prepared + self.sigma * one).softmax(1) for one in noise.to(images.device)]
        probabilities = torch.stack(votes).mean(0)
        return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()

    @torch.no_grad()
    def counts(self, images: Tensor, stream: str) -> Tensor:
        """Return for each image the number of its noisy copies for which each class is predicted: [B, K].

        Args:
            images: [B, C, H, W].
            stream: a name; different names give independent noise for the same image.
        """
        won = torch.zeros(len(images), self.classes, dtype=torch.long, device=images.device)
        ones = won.new_ones(COPIES)
        for image, prepared, row in zip(images, self.prepared(images), won, strict=True):
            source = noise_source(image, stream)
            for start in range(0, self.samples, COPIES):
                copies = min(COPIES, self.samples - start)
                # Drawn on the CPU, so that the noise is the same on every device.
                noise = torch.randn(copies, *prepared.shape, generator=source, dtype=torch.float32).to(images.device)
                row.scatter_add_(0, self.base_logits(prepared + self.sigma * noise).argmax(1), ones[:copies])
        return won

    @torch.no_grad()
    def certified_radius(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the largest epsilon whose box lies in the l2 ball of radius sigma * Phi^-1(p): float64 [B].

        p is the Clopper-Pearson bound on the probability of the label.
        """
        check_smoothed(self)
        net = self.frozen()
        right = Classifier.keeps_class(net, check_images(images), labels)
        won = net.counts(images, "certificate").gather(1, labels.unsqueeze(1)).squeeze(1)
        bounds = [clopper_pearson(count, self.samples, self.alpha) for count in won.tolist()]
        radii = [NormalDist().inv_cdf(p) * self.sigma if p > 0.5 else 0.0 for p in bounds]
        proven = net.box_in_ball(images, torch.tensor(radii, dtype=torch.float64, device=images.device))
        return torch.where(right, proven, -torch.inf)

    def box_radius(self, images: Tensor, epsilon: Tensor) -> Tensor:
        """Return the largest l2 distance of a prepared image to that of any image within epsilon: float64 [B].

        Args:
            images: [B, C, H, W] in [0, 1].
            epsilon: one for each image, [B].
        """
        images, sizes = images.double(), epsilon.double().view(-1, 1, 1, 1)
        centre = self.prepared(images)
        # Both maps of `prepared` are monotone, so the corners of the box are the images of the corners.
        change = torch.maximum(self.prepared(images + sizes) - centre, centre - self.prepared(images - sizes))
        return change.flatten(1).norm(dim=1)

    def box_in_ball(self, images: Tensor, radii: Tensor) -> Tensor:
        """Return for each image the largest epsilon, at most 1, whose box lies in an l2 ball: float64 [B].

        Args:
            images: [B, C, H, W] in [0, 1].
            radii: the l2 radii, float64 [B], at least 0.
        """
        least, most = torch.zeros_like(radii), torch.ones_like(radii)
        for _ in range(60):
            middle = (least + most) / 2
            inside = self.box_radius(images, middle) < radii  # no epsilon fits into a radius of 0
            least, most = torch.where(inside, middle, least), torch.where(inside, most, middle)
        return least

    def certified(self, images: Tensor, labels: Tensor, epsilon: Fraction | Tensor) -> Tensor:
        sizes = epsilon if isinstance(epsilon, Tensor) else float_above(epsilon)
        return self.certified_radius(images, labels) >= sizes

    @torch.no_grad()
    def keeps_class(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return for which samples [N] the label does not have significantly less than half of the votes.

        A certified label has more than half of the votes, so an attack must show that it has less. The noise is
        independent of the noise of the certificate.
        """
        won = self.frozen().counts(images, "vote")
        others = (self.samples - won.gather(1, labels.unsqueeze(1)).squeeze(1)).tolist()
        below_half = [clopper_pearson(count, self.samples, self.alpha) > 0.5 for count in others]
        return (won.argmax(1) == labels) | ~torch.tensor(below_half, dtype=torch.bool, device=images.device)

    def settings(self) -> dict[str, Any]:
        # Models that were saved before there was a preparation have no settings of it.
        prepared = (self.low, self.high, self.pool) != (0, 1, 1)
        return {name: getattr(self, name) for name in (*SETTINGS, *(PREPARATION if prepared else ()))}

    def describe(self) -> str:
        clamped = f"; pixels are clamped to [{self.low:g}, {self.high:g}]" if (self.low, self.high) != (0, 1) else ""
        pooled = f"; blocks of {self.pool}x{self.pool} pixels are averaged" if self.pool > 1 else ""
        return (
            f"A convolutional net ({self.architecture}) smoothed by Gaussian noise of sigma {self.sigma:g}{clamped}"
            f"{pooled}. Certificates count over {self.samples} noisy copies; the ℓ∞ radius is that of the largest box "
            "in the ℓ2 ball."
        )


def noise_source(image: Tensor, stream: str) -> torch.Generator:
    """Return a generator on the CPU whose seed is a digest of the pixels of an image and of the name of a stream.

    >>> image = torch.rand(1, 2, 2)
    >>> seeds = [noise_source(image, stream).initial_seed() for stream in ("vote", "vote", "certificate")]
    >>> seeds[0] == seeds[1], seeds[1] == seeds[2]
    (True, False)
    """
    # Zero is added because -0.0 and 0.0 are the same pixel.
    pixels = (image.detach().double() + 0.0).cpu().numpy().tobytes()
    digest = hashlib.blake2b(pixels, digest_size=4, person=stream.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))  # the generator uses 32 bits of a seed


def check_smoothed(net: SmoothedNet) -> None:
    """Raise an error if the net may compute something else than its class, or if copies may affect each other.

    A subclass may define another base net by overriding `base_logits`, which must map each copy separately.
    """
    modules = modules_of(net)
    check_hooks(net, modules)
    check_tensors(net, modules)
    if changed := overridden(type(net), SmoothedNet, LABELS | {"base_logits"}):
        raise ArgumentError(
            f"net is a {type(net).__name__} that overrides {changed}, but certificates hold for SmoothedNet; "
            "expected only base_logits to be overridden"
        )
    if type(net).base_logits is not SmoothedNet.base_logits:
        return
    for module in modules:
        if module is not net and type(module) not in _LAYERS:
            where = f"{type(module).__name__} ({name_in(net, module)!r})"
            raise ArgumentError(f"net contains {where}; expected only the layers of architecture {net.architecture!r}")
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is None:
            raise ArgumentError(f"batch norm ({name_in(net, module)!r}) of the net has no running mean; expected one")
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
            given = f"start_dim {module.start_dim} and end_dim {module.end_dim}"
            raise ArgumentError(f"Flatten ({name_in(net, module)!r}) of the net has {given}; expected 1 and -1")


@SYSTEMS.register("smoothing")
@dataclass(frozen=True)
class Smoothing(System):
    """The loss is the cross-entropy of the base net on noisy images.

    [model] and the phases of the schedule have no effect.
    """

    net_type: ClassVar[type[Classifier]] = SmoothedNet
    unused: ClassVar[tuple[str, ...]] = (*RELAXATION, *OBJECTIVE)
    needs_whole_batch: ClassVar[bool] = True
    small: ClassVar[tuple[str, ...]] = (
        "system.architecture=small",
        "system.samples=1000",
        "data.limit=10000",
        "optimizer.batch=128",
        "schedule.epochs=[5, 5, 0]",
        "schedule.lr_drops=[]",
        "run.test_every=0",
    )

    architecture: str = "cnn7"
    """The convolutional net: small, medium or cnn7."""
    sigma: float = number(0.25, strictly=True)
    """Standard deviation of the noise, in pixel units."""
    samples: int = number(1000, 1)
    """Number of noisy copies per certificate."""
    alpha: float = number(0.001, strictly=True, most=0.5)
    """Probability with which a certificate may be wrong."""
    votes: int = number(8, 1)
    """Number of noisy copies per prediction."""
    low: float = number(0.0, most=1)
    """Pixels below it are raised to it before noise is added."""
    high: float = number(1.0, most=1)
    """Pixels above it are lowered to it before noise is added."""
    pool: int = number(1, 1)
    """Blocks of pool x pool pixels are averaged before noise is added."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_architecture(self.architecture)
        if self.low >= self.high:
            raise ArgumentError(f"system.low is {self.low} and system.high {self.high}; expected low < high")

    def build(self, recipe: Recipe, info: SetInfo) -> SmoothedNet:
        """Build the net of `system.architecture`, with batch norm."""
        return SmoothedNet(info.image_shape, len(info.classes), **asdict(self), mean=info.mean, std=info.std)

    def loss(
        self, recipe: Recipe, net: Classifier, pixels: Tensor, labels: Tensor, state: StepState
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(net, SmoothedNet)
        source, prepared = step_source(recipe, state, pixels.device), net.prepared(pixels)
        noise = torch.randn(prepared.shape, generator=source, device=pixels.device)
        logits = net.base_logits(prepared + self.sigma * noise)
        return F.cross_entropy(logits, labels), logits
