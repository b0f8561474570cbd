import numpy as np
import pytest
import torch

from linfnet.data import EpochPlan, plan_epoch
from linfnet.errors import ArgumentError


def parts(plan: EpochPlan) -> list[list[int]]:
    return [t.tolist() for t in (plan.order, plan.top, plan.left, plan.flip)]


def test_the_plan_is_fixed_for_all_versions() -> None:
    plan = plan_epoch(6, seed=1, epoch=2, pad=1, flip=True)
    assert parts(plan) == [
        [1, 3, 0, 4, 2, 5],
        [1, 0, 2, 0, 0, 0],
        [0, 1, 0, 0, 2, 1],
        [True, False, True, True, True, True],
    ]
    assert [t.dtype for t in (plan.order, plan.top, plan.left, plan.flip)] == [torch.int64] * 3 + [torch.bool]
    assert len(plan) == 6


def test_neither_reads_nor_moves_the_state_of_the_process() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    first = parts(plan_epoch(100, 3, 4, pad=2, flip=True))
    drawn = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    assert (torch.rand(1).item(), np.random.rand()) == drawn
    assert parts(plan_epoch(100, 3, 4, pad=2, flip=True)) == first


def test_every_image_once_and_every_epoch_otherwise() -> None:
    orders = [plan_epoch(1000, seed, epoch).order for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(1000))
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_the_order_does_not_depend_on_the_augmentation() -> None:
    plain, augmented = plan_epoch(500, 7, 8), plan_epoch(500, 7, 8, pad=3, flip=True)
    assert torch.equal(plain.order, augmented.order)
    assert not plain.top.any()
    assert not plain.left.any()
    assert not plain.flip.any()


def test_offsets_and_flips_are_even_and_independent() -> None:
    size, pad = 70_000, 3
    plan = plan_epoch(size, seed=5, epoch=0, pad=pad, flip=True)
    cells = torch.bincount((plan.top * 7 + plan.left) * 2 + plan.flip, minlength=98)
    expected = size / 98
    # Pearson's statistic has 97 degrees of freedom: mean 97, standard deviation 14; five of these above is no chance.
    assert ((cells - expected) ** 2 / expected).sum() < 97 + 5 * 14


@pytest.mark.parametrize("name", ["size", "seed", "epoch", "pad"])
def test_negative_numbers_are_named(name: str) -> None:
    arguments = {"size": 4, "seed": 0, "epoch": 0, "pad": 0} | {name: -1}
    with pytest.raises(ArgumentError, match=f"{name} is -1"):
        plan_epoch(arguments["size"], arguments["seed"], arguments["epoch"], pad=arguments["pad"])


def test_to_moves_all_parts() -> None:
    plan = plan_epoch(4, 0, 0).to("meta")
    assert {t.device.type for t in (plan.order, plan.top, plan.left, plan.flip)} == {"meta"}
