"""The order of an epoch is a fixed function of its arguments; augmented images agree with simple formulas."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from linfnet.data import augment, plan_epoch, plan_light, plan_maps, relight, warp
from linfnet.data.sampling import EpochPlan
from linfnet.errors import ArgumentError


def parts(plan: EpochPlan) -> list[list[int]]:
    return [t.tolist() for t in plan]


def test_the_plan_is_fixed_for_all_versions() -> None:
    plan = plan_epoch(6, seed=1, epoch=2, pad=1, flip=True)
    assert parts(plan) == [
        [1, 3, 0, 4, 2, 5],
        [1, 0, 2, 0, 0, 0],
        [0, 1, 0, 0, 2, 1],
        [True, False, True, True, True, True],
    ]
    assert [t.dtype for t in plan] == [torch.int64] * 3 + [torch.bool]


def test_global_random_states_are_neither_used_nor_changed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    first = parts(plan_epoch(100, 3, 4, pad=2, flip=True))
    drawn = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    assert (torch.rand(1).item(), np.random.rand()) == drawn
    assert parts(plan_epoch(100, 3, 4, pad=2, flip=True)) == first


def test_each_epoch_is_another_permutation() -> None:
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


def test_offsets_and_flips_are_uniform_and_independent() -> None:
    size, pad = 70_000, 3
    plan = plan_epoch(size, seed=5, epoch=0, pad=pad, flip=True)
    cells = torch.bincount((plan.top * 7 + plan.left) * 2 + plan.flip, minlength=98)
    expected = size / 98
    # Pearson's statistic has 97 degrees of freedom: mean 97, standard deviation 14. The limit is five deviations above.
    assert ((cells - expected) ** 2 / expected).sum() < 97 + 5 * 14


@pytest.mark.parametrize("name", ["size", "seed", "epoch", "pad"])
def test_negative_numbers_are_named(name: str) -> None:
    arguments = {"size": 4, "seed": 0, "epoch": 0, "pad": 0} | {name: -1}
    with pytest.raises(ArgumentError, match=f"{name} is -1"):
        plan_epoch(arguments["size"], arguments["seed"], arguments["epoch"], pad=arguments["pad"])


def test_to_moves_all_parts() -> None:
    plan = plan_epoch(4, 0, 0).to("meta")
    assert {t.device.type for t in plan} == {"meta"}


def slow_augment(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, pad: int) -> Tensor:
    padded = functional.pad(images.float(), (pad, pad, pad, pad), mode="replicate")
    height, width = images.shape[2:]
    crops: list[Tensor] = []
    for image, row, column, mirror in zip(padded, top.tolist(), left.tolist(), flip.tolist(), strict=True):
        crop = image[:, row : row + height, column : column + width]
        crops.append(crop.flip(2) if mirror else crop)
    return torch.stack(crops).to(images.dtype)


def random_images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pad", [0, 1, 3, 9], ids="pad{}".format)
@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 1, 28, 28), (50, 2, 5, 8), (3, 1, 1, 1)], ids=str)
def test_agrees_with_padding_and_cropping(shape: tuple[int, ...], pad: int) -> None:
    images = random_images(*shape)
    plan = plan_epoch(shape[0], seed=1, epoch=2, pad=pad, flip=True)
    out = augment(images, plan.top, plan.left, plan.flip, pad)
    assert out.dtype == torch.uint8
    assert out.is_contiguous()
    assert torch.equal(out, slow_augment(images, plan.top, plan.left, plan.flip, pad))


def test_every_offset_and_mirror_image() -> None:
    pad = 2
    offsets = torch.cartesian_prod(torch.arange(5), torch.arange(5), torch.arange(2))
    top, left, flip = offsets[:, 0], offsets[:, 1], offsets[:, 2].bool()
    images = random_images(1, 3, 6, 7).expand(len(offsets), -1, -1, -1)
    out = augment(images, top, left, flip, pad)
    assert torch.equal(out, slow_augment(images, top, left, flip, pad))
    assert len({image.numpy().tobytes() for image in out}) == len(offsets)


def test_the_centre_is_the_image_itself() -> None:
    images = random_images(4, 3, 8, 8)
    centre, no = torch.full((4,), 3), torch.zeros(4, dtype=torch.bool)
    assert torch.equal(augment(images, centre, centre, no, 3), images)


def test_an_empty_batch() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert augment(random_images(0, 3, 4, 4), none, none, none.bool(), 1).shape == (0, 3, 4, 4)


def test_runs_without_asking_for_values() -> None:
    """A meta tensor has no values: an operation that reads them would fail."""
    images = torch.empty(8, 3, 32, 32, dtype=torch.uint8, device="meta")
    offsets = torch.empty(8, dtype=torch.int64, device="meta")
    assert augment(images, offsets, offsets, offsets.bool(), 3).shape == images.shape


def test_wrong_shapes_are_named() -> None:
    offsets, no = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    with pytest.raises(ArgumentError, match=r"images has shape \(4, 8, 8\)"):
        augment(torch.zeros(4, 8, 8), offsets, offsets, no, 1)
    with pytest.raises(ArgumentError, match=r"left has shape \(3,\); expected \[4\]"):
        augment(torch.zeros(4, 1, 8, 8), offsets, offsets[:3], no, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_the_device() -> None:
    images = random_images(64, 3, 32, 32)
    plan = plan_epoch(64, seed=0, epoch=0, pad=3, flip=True)
    there = plan.to("cuda")
    out = augment(images.cuda(), there.top, there.left, there.flip, 3)
    assert torch.equal(out.cpu(), augment(images, plan.top, plan.left, plan.flip, 3))


def test_maps_are_rotations_and_zooms_within_their_limits() -> None:
    maps = plan_maps(4000, seed=3, epoch=5, rotate=30.0, zoom=0.25).double()
    assert torch.equal(maps[:, 0, 0], maps[:, 1, 1])
    assert torch.equal(maps[:, 0, 1], -maps[:, 1, 0])
    zoom, angle = 1 / torch.linalg.det(maps).sqrt(), torch.rad2deg(torch.atan2(maps[:, 0, 1], maps[:, 0, 0]))
    assert 0.8 - 1e-6 <= zoom.min() < 0.81
    assert 1.24 < zoom.max() <= 1.25 + 1e-6
    assert -30 - 1e-4 <= angle.min() < -29.5
    assert 29.5 < angle.max() <= 30 + 1e-4
    assert abs(zoom.log().mean()) < 0.01
    assert abs(angle.mean()) < 1
    assert abs((angle / 30 * zoom.log()).mean()) < 0.01
    assert torch.equal(maps, plan_maps(4000, seed=3, epoch=5, rotate=30.0, zoom=0.25).double())
    assert not torch.equal(maps, plan_maps(4000, seed=3, epoch=6, rotate=30.0, zoom=0.25).double())
    plain = torch.eye(2).expand(10, 2, 2)
    assert torch.equal(plan_maps(10, seed=0, epoch=0), plain)
    draws = plan_maps(10, 0, 0, rotate=10.0), plan_maps(10, 0, 0, rotate=10.0, zoom=0.5)
    turns = [torch.atan2(each[:, 0, 1], each[:, 0, 0]) for each in draws]
    torch.testing.assert_close(turns[0], turns[1])  # the angles do not depend on the zoom


def test_the_identity_changes_nothing_and_a_quarter_turn_is_exact() -> None:
    torch.manual_seed(0)
    pixels = torch.rand(2, 3, 5, 7)
    torch.testing.assert_close(warp(pixels, plan_maps(2, 0, 0)), pixels, atol=1e-6, rtol=0)
    square = torch.rand(2, 3, 6, 6)
    quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).expand(2, 2, 2)
    torch.testing.assert_close(warp(square, quarter), square.rot90(-1, (2, 3)), atol=1e-6, rtol=0)


def test_a_warped_image_repeats_its_edge_and_keeps_its_shape() -> None:
    row = torch.linspace(0, 1, 9).expand(1, 1, 5, 9)
    double = warp(row, torch.tensor([[[0.5, 0.0], [0.0, 0.5]]]))
    torch.testing.assert_close(double, (0.5 * row + 0.25))  # twice as large around the centre
    half = warp(row, torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]))
    torch.testing.assert_close(half, (2 * row - 0.5).clamp(0, 1))
    # In an image that is not square, a rotation is one of the pixels: a line at 45 degrees stays straight.
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(40.0), indexing="ij")
    ramp = ((x - 19.5) / 100 + 0.5).expand(1, 1, 20, 40)
    turn = math.radians(30)
    maps = torch.tensor([[[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]])
    expected = ((x - 19.5) * math.cos(turn) + (y - 9.5) * math.sin(turn)) / 100 + 0.5
    torch.testing.assert_close(warp(ramp, maps)[0, 0, 5:15, 10:30], expected[5:15, 10:30], atol=1e-5, rtol=0)


def test_light_is_uniform_within_its_limits_and_independent_of_the_maps() -> None:
    light = plan_light(4000, seed=3, epoch=5, contrast=0.25, brightness=0.1)
    exponent, summand = light[:, 0].double().log() / math.log(1.25), light[:, 1].double() / 0.1
    maps = plan_maps(4000, seed=3, epoch=5, rotate=30.0, zoom=0.25).double()
    angle = torch.rad2deg(torch.atan2(maps[:, 0, 1], maps[:, 0, 0])) / 30
    for uniform in (exponent, summand):
        assert -1 - 1e-5 <= uniform.min() < -0.99
        assert 0.99 < uniform.max() <= 1 + 1e-5
        assert abs(uniform.mean()) < 0.03
        assert abs(uniform.square().mean() - 1 / 3) < 0.02
        assert abs((uniform * angle).mean()) < 0.02
    assert abs((exponent * summand).mean()) < 0.02
    assert torch.equal(light, plan_light(4000, seed=3, epoch=5, contrast=0.25, brightness=0.1))
    assert not torch.equal(light, plan_light(4000, seed=3, epoch=6, contrast=0.25, brightness=0.1))
    assert torch.equal(light[:, 0], plan_light(4000, seed=3, epoch=5, contrast=0.25)[:, 0])


def test_light_changes_contrast_and_mean() -> None:
    pixels = 0.4 + 0.2 * torch.rand(3, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(relight(pixels, plan_light(3, 0, 0)), pixels, atol=1e-6)
    light = torch.tensor([[2.0, 0.0], [1.0, 0.1], [0.5, -0.2]])
    changed = relight(pixels, light)
    for before, after, (factor, summand) in zip(pixels, changed, light, strict=True):
        torch.testing.assert_close(after.mean(), before.mean() + summand)
        torch.testing.assert_close(after - after.mean(), factor * (before - before.mean()))
    clipped = relight(pixels, torch.tensor([[1.0, 0.9], [1.0, -0.9], [10.0, 0.0]]))
    assert clipped[0].min() == clipped[2].max() == 1
    assert clipped[1].max() == clipped[2].min() == 0
