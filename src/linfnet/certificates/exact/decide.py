"""Decide for each image whether any image within epsilon changes its class: robust, broken, or undecided."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.certificates.exact.nets import circuit_of
from linfnet.certificates.exact.reduced import Floats, reduce
from linfnet.certificates.exact.search import search
from linfnet.certificates.margin import certify_by_margin
from linfnet.certificates.rounding import check_program, float_above
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon
from linfnet.errors import ArgumentError
from linfnet.inputs import (
    Images,
    check_count,
    check_net,
    net_device,
    prepare_epsilon,
    prepare_images,
    prepare_labels,
)
from linfnet.nn import Classifier, ProvenNet
from linfnet.nn.label_margin import label_on_top
from linfnet.nn.proven import check_unchanged

BATCH = 500
# Images for which the bounds of all nodes are computed together.
OPEN_BATCH = 32
BRANCHES = 20_000
SECONDS = 60.0


@dataclass(frozen=True)
class Decided:
    """What is known about N images at one epsilon; the tensors are on the device of the images."""

    robust: Tensor
    """bool [N]: proven that the net predicts the label for every image within epsilon."""
    broken: Tensor
    """bool [N]: the net does not predict the label for `witness`, which is within epsilon."""
    witness: Tensor
    """[N, C, H, W]: for a broken image an image within epsilon for which the logit of the label is not strictly the
    largest; otherwise the image itself."""
    branches: Tensor
    """int64 [N]: the branches of the search; 0 for images that the interval bounds or a given witness decided."""
    prediction: Tensor
    """int64 [N]: the class with the largest logit."""
    labels: Tensor
    """int64 [N]: the classes; these are the predicted classes if no labels were given."""
    eps: Fraction | Tensor
    """The epsilon of all images, or a float64 tensor [N]."""

    @property
    def undecided(self) -> Tensor:
        """bool [N]: the budget ended before a result was known."""
        return ~(self.robust | self.broken)

    def __len__(self) -> int:
        return len(self.robust)

    def __repr__(self) -> str:
        counts = (int(flags.sum()) for flags in (self.robust, self.broken, self.undecided))
        return "Decided({} images: {} robust, {} broken, {} undecided)".format(len(self), *counts)


@torch.no_grad()
def decide(
    net: Classifier,
    images: Images,
    labels: Labels | None = None,
    eps: Epsilon | Tensor | None = None,
    *,
    witness: Images | None = None,
    branches: int = BRANCHES,
    seconds: float = SECONDS,
    advance: Callable[[int], None] = lambda images: None,
) -> Decided:
    """Decide exactly, for the float32 program, which images are robust at epsilon. Perturbed images stay in [0, 1].

    Interval bounds decide most images. For the others the net is searched completely: an image is `robust` if all
    branches of the search end in contradictions, and `broken` if an image within epsilon was found for which the label
    is not strictly on top, checked by running the net (docs/certificates.md). The net is evaluated at p = inf in eval
    mode. The search runs on the CPU, with the threads of torch.

    Args:
        net: a `LinfNet`, a `ConvStemNet`, a compressed net, or a wrapped net whose operations all have rules.
        images: [N, C, H, W] in [0, 1], a tensor or a NumPy array of float32.
        labels: integers [N]; by default the predicted classes.
        eps: the largest change of a pixel; a float64 tensor [N] contains one epsilon per image.
        witness: [N, C, H, W]: results of an attack. If they are within epsilon and break an image, it is not searched.
        branches: the largest number of branches for an image; an image that needs more is undecided.
        seconds: the largest time for an image.
        advance: called with the number of images that are finished.

    >>> from linfnet.nn import LinfNet
    >>> net = LinfNet((1, 1, 1), 2, (), identity_init=False)
    >>> _ = net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
    >>> decide(net, torch.tensor([0.25, 0.4]).view(2, 1, 1, 1), [0, 0], "0.2")
    Decided(2 images: 1 robust, 1 broken, 0 undecided)
    """
    verifier = Verifier(net, branches=branches, seconds=seconds)
    pixels = prepare_images(net, images, move=False)
    if eps is None:
        raise ArgumentError("eps is 'None'; expected a number like 8/255: method 'exact' decides at one epsilon")
    size, device = prepare_epsilon(eps, pixels), net_device(net)
    known = None if labels is None else prepare_labels(labels, pixels, net.classes)
    given = None if witness is None else prepare_images(net, witness, move=False)
    if given is not None and given.shape != pixels.shape:
        raise ArgumentError(f"witness has shape {tuple(given.shape)}; expected that of the images")
    parts: list[tuple[Tensor, ...]] = []
    for start in range(0, max(len(pixels), 1), BATCH):
        own = slice(start, start + BATCH)
        part, moved = (None if values is None else values[own].to(device) for values in (pixels, given))
        classes = None if known is None else known[own].to(device)
        own_size = size[own].to(device) if isinstance(size, Tensor) else size
        assert part is not None
        found = verifier.decide(part, classes, own_size, moved, advance)
        parts.append(tuple(column.to(pixels.device) for column in found))
    robust, broken, moved, count, prediction, classes = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return Decided(robust, broken, moved.view(tuple(images.shape)), count, prediction, classes, size)


class Verifier:
    """Decides images of one net."""

    def __init__(self, net: Classifier, *, branches: int = BRANCHES, seconds: float = SECONDS) -> None:
        checked = check_net(net)
        check_count("branches", branches)
        if not seconds > 0:
            raise ArgumentError(f"seconds is {seconds}; expected a number above 0")
        if checked.arithmetic != "float32" or not isinstance(checked, ProvenNet):
            raise ArgumentError(
                f"the net is of system {checked.system!r}; expected an l_inf-distance net: no other net can be decided"
            )
        if checked.normalize.std.dtype != torch.float32:
            raise ArgumentError(f"the net computes in {checked.normalize.std.dtype}; expected torch.float32")
        self.net, self.branches, self.seconds = checked.frozen(), branches, seconds
        check_unchanged(self.net)
        self.circuit = circuit_of(self.net)

    @torch.no_grad()
    def decide(
        self,
        images: Tensor,
        labels: Tensor | None,
        eps: Fraction | Tensor,
        witness: Tensor | None,
        advance: Callable[[int], None],
    ) -> tuple[Tensor, ...]:
        """Decide images on the device of the net; return robust, broken, witness, branches, prediction, labels."""
        check_program(self.net, images)
        self.circuit = circuit_of(self.net)  # the weights may have changed since the last call
        logits = self.net(images)
        prediction = logits.argmax(1)
        classes = prediction if labels is None else labels
        # Epsilon is rounded up to float64, so this box contains all float32 images within epsilon.
        bound = eps if isinstance(eps, Tensor) else torch.full_like(classes, float_above(eps), dtype=torch.float64)
        lower, upper = inner_box(images, bound)
        inside = inner_box(images, eps)
        low, high = self.net.bounds(lower, upper)
        robust = label_on_top(low, classes, high)
        broken = ~label_on_top(logits, classes)
        found, branches = images.clone(), torch.zeros_like(classes)

        def accept(numbers: Tensor, moved: Tensor) -> None:
            """Mark images as broken if `moved` is within epsilon of them and breaks the net."""
            within = ((moved >= inside[0][numbers]) & (moved <= inside[1][numbers])).flatten(1).all(1)
            good = within & ~label_on_top(self.net(moved), classes[numbers])
            found[numbers[good]], broken[numbers[good]] = moved[good], True

        left = (~(robust | broken)).nonzero().flatten()
        by_margin = certify_by_margin(self.net, images[left], classes[left]).radii >= bound[left]
        robust[left[by_margin]] = True
        left = left[~by_margin]
        if witness is not None:
            accept(left, witness[left])
            left = left[~broken[left]]
        advance(len(images) - len(left))
        box = (lower, upper, low, high)
        numbers, candidates = list[int](), list[Tensor]()
        for number, verdict, moved, count in self._search(left, images, classes, logits, box):
            branches[number], robust[number] = count, verdict
            if moved is not None:
                numbers.append(number)
                candidates.append(moved)
            advance(1)
        if numbers:
            accept(torch.tensor(numbers, device=images.device), torch.stack(candidates).to(images))
        return robust, broken, found, branches, prediction, classes

    def _search(
        self, left: Tensor, images: Tensor, labels: Tensor, logits: Tensor, box: tuple[Tensor, ...]
    ) -> Iterator[tuple[int, bool, Tensor | None, int]]:
        """Search the images in `left`; yield their numbers, whether they are robust, a candidate, and the branches."""
        lower, upper, low, high = box
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for part in left.split(OPEN_BATCH):
                boxes = (end[part].flatten(1).cpu() for end in (lower, upper))
                below, above = (end.numpy() for end in self.circuit.bounds(*boxes))
                work: list[tuple[Floats, Floats, Floats, int, list[int]]] = []
                for k, number in enumerate(part.tolist()):
                    own, most = int(labels[number]), high[number].tolist()
                    # Classes that can reach the label, those with the largest logits first.
                    order: list[int] = logits[number].argsort(descending=True).tolist()
                    rivals = [rival for rival in order if rival != own and most[rival] >= low[number, own].item()]
                    work.append((images[number].flatten().cpu().numpy(), below[k], above[k], own, rivals))
                results = pool.map(self._one, *zip(*work, strict=True))
                for number, (robust, image, count) in zip(part.tolist(), results, strict=True):
                    moved = None if image is None else torch.from_numpy(image).view(images.shape[1:])
                    yield number, robust, moved, count

    def _one(
        self, image: Floats, low: Floats, high: Floats, own: int, rivals: list[int]
    ) -> tuple[bool, Floats | None, int]:
        """Return whether one image is robust, a candidate for a witness, and the number of branches."""
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return False, None, 0
        robust, used, deadline = True, 0, time.monotonic() + self.seconds
        for rival in rivals:
            part = reduce(self.circuit, low, high, (own, rival))
            found = search(part, image[part.pixels], self.branches - used, deadline)
            used += found.branches
            if found.image is not None:
                moved = image.copy()
                moved[part.pixels] = found.image
                return False, moved, used
            robust &= found.robust
            if used >= self.branches or time.monotonic() > deadline:
                return False, None, used
        return robust, None, used
