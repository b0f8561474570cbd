"""Compress a trained l_inf-distance net: keep only the connections that decide an output (docs/compression.md).

At p = inf the output of a neuron is a single |x_i - w_i|. The connections that are the largest of their neuron for some
training image are few, and the net that has only these is again an l_inf-distance net with certificates.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, cast

import torch
from torch import Tensor

from linfnet.attacks import pgd
from linfnet.boxes import inner_box
from linfnet.certificates import certify
from linfnet.data import ImageSet
from linfnet.data.sampling import augment, plan_epoch
from linfnet.epsilon import Epsilon, format_epsilon, parse_epsilon
from linfnet.errors import ArgumentError
from linfnet.evaluation.evaluator import images_for
from linfnet.inputs import check_count, check_net, net_device
from linfnet.nn import ConvStemNet, LinfNet, LpDistance, SparseDistance, SparseNet
from linfnet.nn.conv_stem import ConvStem
from linfnet.nn.sparse import remove_unread
from linfnet.ops import count_deciding, count_deciding_sparse

# Number of images that are computed together.
BATCH = 500
# Steps of the gradient attack whose images are counted.
ATTACK_STEPS = 3
DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class Measured:
    """What a net achieves on the held-out images; accuracies are shares from 0 to 1."""

    clean: float
    certified: float | None
    """By the margin certificate at `Compressed.eps`; None without an epsilon."""
    connections: tuple[int, ...]
    """The number of connections of each layer."""
    hidden: tuple[int, ...]
    """The number of neurons of each hidden layer."""
    size: int
    """Bytes of its model.safetensors."""


@dataclass(frozen=True)
class Compressed:
    """A compressed net, and its comparison with the trained net on images that were not used to compress it."""

    net: SparseNet
    before: Measured
    after: Measured
    eps: Fraction | None
    identical: float
    """The share of held-out images for which all logits of both nets are equal bit for bit."""
    checked: int
    """The number of held-out images."""
    counted: int
    """The number of images, with augmented and perturbed copies, on which the deciding connections were counted."""

    def to_json(self) -> dict[str, Any]:
        """Return everything except the net as JSON."""
        return {
            "eps": None if self.eps is None else format_epsilon(self.eps),
            "identical": self.identical,
            "checked": self.checked,
            "counted": self.counted,
            "before": vars(self.before),
            "after": vars(self.after),
        }

    def describe(self) -> str:
        """Return the accuracies of both nets as a sentence for the model card."""
        shares = [("clean", self.before.clean, self.after.clean)]
        if self.eps is not None:
            name = f"certified by margin at ε = {format_epsilon(self.eps)}"
            shares.append((name, self.before.certified or 0.0, self.after.certified or 0.0))
        text = ", ".join(f"{name} {100 * after:.2f} (before {100 * before:.2f})" for name, before, after in shares)
        return f"Accuracy in % on {self.checked:,} images after the compression, {self.net.guarantee}: {text}."

    def __repr__(self) -> str:
        small, large = self.after, self.before
        certified = "" if small.certified is None else f", certified {large.certified:.4f} -> {small.certified:.4f}"
        return (
            f"Compressed({sum(large.connections):,} -> {sum(small.connections):,} connections, {large.size:,} -> "
            f"{small.size:,} bytes, clean {large.clean:.4f} -> {small.clean:.4f}{certified}, "
            f"{100 * self.identical:.2f} % of {self.checked:,} held-out images with identical logits)"
        )


# A net that can be compressed.
Compressible = LinfNet | ConvStemNet | SparseNet


def compress(
    net: Compressible,
    data: object,
    *,
    eps: Epsilon | None = None,
    images: int | None = None,
    passes: int = 4,
    pad: int = 0,
    flip: bool = False,
    at_least: int = 1,
    runners_up: int | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    check: object = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda images: None,
) -> Compressed:
    """Return a net that has only the connections of a trained net that decide an output for some training image.

    Wherever the deciding connections of an image were kept, the logits are equal to those of `net` bit for bit.
    The certificates of the compressed net hold for every image: they are about the compressed net itself.

    Args:
        net: a trained `LinfNet` or `ConvStemNet` in float32, or a compressed net, which then loses further connections.
            It is used at p = inf in eval mode and not changed. Convolutions keep all connections.
        data: labelled training images, in any form that `linfnet.evaluate` accepts.
        eps: also count the connections of perturbed images: each image is changed by random signs times eps, and by a
            few steps of PGD. Certified accuracy is measured at this epsilon.
        images: number of images in each pass, drawn at random; by default all.
        passes: number of passes over the images, each with other random crops, flips and perturbations.
        pad, flip: augmentation, as in the keys `data.pad` and `data.flip` of a recipe.
        at_least: how often a connection must decide to be kept; the most frequent one of each neuron is always kept.
        runners_up: also keep connections that were the second largest of a neuron at least this often. This search is
            slow on a CPU, and not available for a compressed net.
        dtype: "float16" rounds the weights, except those of convolutions, to float16 numbers before the net is
            measured. The file is smaller, and the net still computes in float32.
        check: held-out images for the comparison. By default a tenth of `data`, at most 1000 images, is not counted
            but used for this.
        seed: of the random choices.
        advance: called with the number of images of `data` that were processed, once per batch.
    """
    if not isinstance(check_net(net), Compressible):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(
            f"net is a {type(net).__name__} of system {net.system!r}; expected a LinfNet, a ConvStemNet or a SparseNet"
        )
    if runners_up is not None and isinstance(net, SparseNet):
        raise ArgumentError("runners_up needs a dense net, and net is compressed; leave runners_up out")
    if net.normalize.std.dtype != torch.float32:
        raise ArgumentError(f"net computes in {net.normalize.std.dtype}; expected torch.float32: pass net.float()")
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    for name, value in (("images", images), ("passes", passes), ("at_least", at_least), ("runners_up", runners_up)):
        if value is not None:
            check_count(name, value)
    check_count("pad", pad, 0)
    size = None if eps is None else parse_epsilon(eps)
    training, held_out = _split(images_for(net, data), None if check is None else images_for(net, check), seed)
    counts = _Counts(_layers(net), runners_up is not None)
    with net.at_infinity(), torch.no_grad():
        for number in range(passes):
            plan = plan_epoch(len(training), seed, number, pad=pad, flip=flip).to(training.images.device)
            for part in torch.arange(len(training))[:images].split(BATCH):
                order, top, left, flips = (values[part] for values in plan)
                pixels = training.as_pixels(augment(training.images[order], top, left, flips, pad))
                pixels = pixels.to(net_device(net)).reshape(-1, *net.image_shape)
                labels = training.labels[order].to(pixels.device)
                for variant in _variants(net, pixels, labels, size, seed + number * len(training) + int(part[0])):
                    x, stem = net.normalize(variant), _stem(net)
                    counts.add((stem(x) if stem else x).flatten(1))
                advance(len(part))
        small = sparse_net_of(net, counts.kept(at_least, runners_up)).round_weights_(DTYPES[dtype])
    return compare(net, small, held_out, size, counts.images)


def _stem(net: Compressible) -> ConvStem | None:
    return None if isinstance(net, LinfNet) else net.stem


def _layers(net: Compressible) -> list[LpDistance | SparseDistance]:
    layers = [layer for layer in net.layers if isinstance(layer, LpDistance | SparseDistance)]
    if len(layers) != len(net.layers):
        raise ArgumentError("a layer of the net is not an LpDistance; expected the layers of a LinfNet")
    return layers


def _split(data: ImageSet, check: ImageSet | None, seed: int) -> tuple[ImageSet, ImageSet]:
    """Return the images to count on and the held-out images."""
    if check is not None:
        if not len(check) or not len(data):
            raise ArgumentError("data or check contains no images; expected at least one")
        return data, check
    if len(data) < 2:
        raise ArgumentError(f"data has {len(data)} images; expected at least 2, of which one is held out, or check=…")
    held = max(1, min(1000, len(data) // 10))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).to(data.labels.device)
    parts = [replace(data, images=data.images[part], labels=data.labels[part]) for part in (order[held:], order[:held])]
    return parts[0], parts[1]


def _variants(net: Compressible, pixels: Tensor, labels: Tensor, eps: Fraction | None, seed: int) -> Iterator[Tensor]:
    """Return the images themselves, and with an epsilon also two perturbed copies."""
    yield pixels
    if not eps:
        return
    source = torch.Generator(pixels.device).manual_seed(seed)
    lower, upper = inner_box(pixels, eps)
    up = torch.randint(2, pixels.shape, generator=source, device=pixels.device, dtype=torch.bool)
    yield torch.where(up, upper, lower)
    with torch.enable_grad():
        moved = pgd(net, pixels, labels, eps, source, steps=ATTACK_STEPS)
    yield moved


class _Counts:
    """How often each connection of a net was the largest of its neuron, and the second largest."""

    def __init__(self, layers: list[LpDistance | SparseDistance], runners_up: bool) -> None:
        self.layers, self.images = layers, 0
        self.first = [torch.zeros_like(layer.weight, dtype=torch.int32) for layer in layers]
        self.second = [torch.zeros_like(count) for count in self.first] if runners_up else []

    def add(self, x: Tensor) -> None:
        """Count the connections of normalised images [n, pixels]."""
        self.images += len(x)
        for number, layer in enumerate(self.layers):
            weight, first = layer.weight.detach(), self.first[number]
            if isinstance(layer, SparseDistance):
                count_deciding_sparse(x, weight, layer.index, layer.offsets, first)
            else:
                count_deciding(x, weight, first, self.second[number] if self.second else None)
            x = layer(x)

    def kept(self, at_least: int, runners_up: int | None) -> list[Tensor]:
        """Return for each layer which connections remain: bool, of the shape of its weights."""
        kept: list[Tensor] = []
        for number, (layer, count) in enumerate(zip(self.layers, self.first, strict=True)):
            keep = count >= at_least
            if isinstance(layer, SparseDistance):
                keep[_most_frequent(count, layer.offsets)] = True
            else:
                keep.scatter_(1, count.argmax(1, keepdim=True), True)
            if runners_up is not None:
                keep |= self.second[number] >= runners_up
            kept.append(keep)
        return kept


def _most_frequent(count: Tensor, offsets: Tensor) -> Tensor:
    """Return for each neuron of a sparse layer the number of its connection with the largest count."""
    neurons = torch.repeat_interleave(offsets.long().diff())
    # Stable sorts by count, then by neuron: the first connection of each neuron has its largest count.
    order = count.argsort(stable=True, descending=True)
    order = order[neurons[order].argsort(stable=True)]
    return order[offsets[:-1].long()]


def sparse_net_of(net: Compressible, kept: Sequence[Tensor]) -> SparseNet:
    """Return a net with some of the connections of a net, without neurons whose output is not used.

    `kept`: for each layer bool, of the shape of its weights, with at least one connection of each neuron.
    """
    layers: list[SparseDistance] = []
    for layer, keep in zip(_layers(net), kept, strict=True):
        if isinstance(layer, SparseDistance):
            before = torch.cat([keep.new_zeros(1, dtype=torch.long), keep.cumsum(0)])
            index, offsets = layer.index[keep], before[layer.offsets.long()]
        else:
            counts = keep.sum(1)
            index, offsets = keep.nonzero()[:, 1], torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        mean = None if layer.shift is None else layer.shift.running_mean
        layers.append(SparseDistance(layer.weight[keep], index, offsets, layer.in_features, mean=mean, bias=layer.bias))
    options: dict[str, Any] = {"mean": net.mean, "std": net.std, "negate_logits": net.negate_logits}
    small = SparseNet(net.image_shape, net.classes, remove_unread(layers), stem=deepcopy(_stem(net)), **options)
    small.scale.data.copy_(net.scale)
    return small.to(net_device(net)).eval()


@torch.no_grad()
def compare(
    net: Compressible, small: SparseNet, images: ImageSet, eps: Fraction | None, counted: int = 0
) -> Compressed:
    """Return the comparison of a net with a compressed net on held-out images."""
    found: list[tuple[Tensor, ...]] = []
    for part in torch.arange(len(images), device=images.labels.device).split(BATCH):
        pixels = images.pixels(part).to(net_device(net)).reshape(-1, *net.image_shape)
        labels = images.labels[part].to(pixels.device)
        both = [certify(one, pixels, labels) for one in (net, small)]
        with net.at_infinity():
            same = (net(pixels) == small(pixels)).all(1)
        at_eps = [one.at(eps or 0) for one in both]
        found.append((same, *(one.radius >= 0 for one in both), *at_eps))
    identical, *shares = (torch.cat(values).double().mean().item() for values in zip(*found, strict=True))

    def measured(one: Compressible, clean: float, certified: float) -> Measured:
        layers = cast(list[LpDistance | SparseDistance], list(one.layers))
        return Measured(
            clean=clean,
            certified=None if eps is None else certified,
            connections=tuple(layer.weight.numel() for layer in layers),
            hidden=one.hidden,
            size=one.saved_size(),
        )

    before, after = measured(net, shares[0], shares[2]), measured(small, shares[1], shares[3])
    return Compressed(small, before, after, eps, identical, checked=len(images), counted=counted)
