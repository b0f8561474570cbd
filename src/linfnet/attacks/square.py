"""The Square attack (Andriushchenko et al., 2020): change random squares by ±eps and accept what lowers the margin."""

import math

import torch
from torch import Tensor

from linfnet.boxes import inner_box
from linfnet.data.arrays import Labels
from linfnet.epsilon import Epsilon
from linfnet.inputs import Images, check_count, check_net, prepare_epsilon, prepare_images, prepare_labels
from linfnet.nn import Classifier
from linfnet.nn.label_margin import margin

# The share of pixels that the first squares cover, and the fractions of the search after which it is halved.
FIRST_SHARE = 0.8
HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def square_share(progress: float) -> float:
    """Return the share of pixels that a square covers after a fraction of the search, from 0 to 1.

    >>> square_share(0.0), square_share(0.003)
    (0.8, 0.4)
    """
    return FIRST_SHARE / 2 ** sum(progress > mark for mark in HALVINGS)


@torch.no_grad()
def square_attack(
    net: Classifier,
    images: Images,
    labels: Labels,
    epsilon: Epsilon | Tensor,
    *,
    queries: int = 1000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Attack images by a random search that lowers the margin without gradients; return the attacked images.

    Args:
        net, images, labels, epsilon: as in `best_pgd`.
        queries: number of forward passes per sample.
        generator: source of the random squares, on the CPU.
    """
    check_count("queries", queries)
    pixels = prepare_images(check_net(net), images)
    truth, device = prepare_labels(labels, pixels, net.classes), pixels.device
    # Inputs without rows and columns, such as vectors, are one row of pixels.
    shape = (1, 1, *net.image_shape)
    channels, rows, columns = math.prod(shape[:-2]), shape[-2], shape[-1]
    box = inner_box(pixels, prepare_epsilon(epsilon, pixels))
    lower, upper, start = (each.reshape(-1, channels, rows, columns) for each in (*box, pixels))

    attacked = net.frozen()

    def margins(moved: Tensor, labels: Tensor) -> Tensor:
        return margin(attacked(moved.view(-1, *net.image_shape)), labels)

    # Start from vertical stripes: in each column, every channel is at the lower or upper end of its box.
    signs = torch.rand((len(start), channels, 1, columns), generator=generator).to(device) < 0.5
    moved = torch.where(signs, lower, upper)
    gap, before = margins(moved, truth), margins(start, truth)
    moved = torch.where((before < gap).view(-1, 1, 1, 1), start, moved)
    gap = torch.minimum(gap, before)
    for query in range(queries):
        active = (gap > 0).nonzero().flatten()
        if not len(active):
            break
        covered = square_share(query / queries) * rows * columns
        side = min(max(1, round(math.sqrt(covered))), rows, columns)
        inside = _squares(len(active), side, rows, columns, generator).to(device)
        signs = torch.rand((len(active), channels, 1, 1), generator=generator).to(device) < 0.5
        trial = torch.where(inside, torch.where(signs, lower[active], upper[active]), moved[active])
        least = margins(trial, truth[active])
        better = least < gap[active]
        moved[active[better]], gap[active[better]] = trial[better], least[better]
    return moved.view(images.shape)


def _squares(count: int, side: int, rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Return bool [count, 1, rows, columns]: masks that each contain one square at a random position."""
    top = torch.randint(rows - side + 1, (count, 1), generator=generator)
    left = torch.randint(columns - side + 1, (count, 1), generator=generator)
    in_rows = (torch.arange(rows) >= top) & (torch.arange(rows) < top + side)
    in_columns = (torch.arange(columns) >= left) & (torch.arange(columns) < left + side)
    return (in_rows.unsqueeze(2) & in_columns.unsqueeze(1)).unsqueeze(1)
