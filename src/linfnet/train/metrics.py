"""Training metrics: the metrics of each step, and clean and certified accuracy (in real arithmetic) on a set."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from linfnet.certificates.real import real_certified
from linfnet.data import ImageSet
from linfnet.distributed.group import ALONE, Group
from linfnet.errors import LinfnetError
from linfnet.losses import margin_shares
from linfnet.nn import Classifier
from linfnet.nn.label_margin import label_on_top, never_predicted
from linfnet.results import Accuracies
from linfnet.schedules import StepState

TEST_BATCH = 1000


def pixel_batches(images: ImageSet, size: int = TEST_BATCH) -> Iterator[Tensor]:
    """Yield the images of a set, in order, as pixels [size, C, H, W]; the last batch may be smaller."""
    for start in range(0, len(images), size):
        yield images.pixels(slice(start, start + size))


@torch.no_grad()
def predict(net: Classifier, images: ImageSet, group: Group = ALONE) -> Tensor:
    """Return the logits [N, K] of a set at the net's current p and mode; the processes of the group share the work."""
    part = group.share(len(images))
    mine = replace(images, images=images.images[part], labels=images.labels[part])
    logits = [net(batch) for batch in pixel_batches(mine)] or [net(images.pixels(slice(0, 0)))]
    return group.gather(torch.cat(logits), len(images))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of samples whose true class has the strictly largest logit."""
    return label_on_top(logits, labels).double().mean().item()


def accuracies(
    net: Classifier,
    images: ImageSet,
    epsilons: tuple[Fraction, ...],
    group: Group = ALONE,
    *,
    threshold: float | None = None,
) -> Accuracies:
    """Return the clean and certified accuracy of a net in eval mode.

    Certificates need p = inf; expensive ones are skipped. With a threshold, the result also has the fractions of
    margins above the threshold, between 0 and the threshold, and below 0.
    """
    logits, labels = predict(net, images, group), images.labels

    def certified(eps: Fraction) -> Tensor:
        if net.lipschitz is not None:
            return real_certified(logits, labels, net.lipschitz, eps)
        batches = zip(pixel_batches(images), labels.split(TEST_BATCH), strict=True)
        return torch.cat([net.certified_in_training(pixels, own, eps) for pixels, own in batches])

    shares = {eps: certified(eps).double().mean().item() for eps in epsilons} if net.cheap else {}
    margins = [] if threshold is None else (margin_shares(logits, labels, threshold).double() / len(labels)).tolist()
    return Accuracies(accuracy(logits, labels), shares, *margins, never_predicted=len(never_predicted(logits, labels)))


# Columns of the record: the loss, and the numbers of samples that are classified correctly, or have a margin above
# theta, in [0, theta], or below 0. The log has the mean of each column under these keys.
MEANS = ("loss", "accuracy", "above", "between", "below")
RECORD_COLUMNS = len(MEANS)


def record_step(record: Tensor, row: int, loss: Tensor, logits: Tensor, labels: Tensor, threshold: float) -> None:
    """Write the metrics of one step to a row of the epoch's record [steps, 5], without synchronising the device."""
    shares = margin_shares(logits, labels, threshold)
    correct = (logits.argmax(1) == labels).sum()
    record[row] = torch.cat([torch.stack([loss, correct.to(loss.dtype)]), shares.to(loss.dtype)])


def summarise(record: Tensor, sizes: Tensor, first_step: int, state_at: Callable[[int], StepState]) -> dict[str, float]:
    """Return the means over the samples of the recorded steps of an epoch: loss, accuracy and the three margin shares.

    Raises an error that names the step if a loss is NaN or infinite.
    """
    record = record.double().cpu()
    if bad := (~record[:, 0].isfinite()).nonzero().flatten().tolist():
        step, state = first_step + bad[0], state_at(first_step + bad[0])
        raise LinfnetError(
            f"the loss is {record[bad[0], 0].item()} at step {step} (epoch {int(state.epoch) + 1}, p = {state.p:g}, "
            f"lr = {state.lr:g}): check optimizer.lr, optimizer.eps and the images; "
            "nothing was saved since the last checkpoint"
        )
    samples = sizes.sum().item()
    means = [(record[:, 0] * sizes).sum().item() / samples, *(record[:, 1:].sum(0) / samples).tolist()]
    return dict(zip(MEANS, means, strict=True))
