import pytest
import torch
from torch import Tensor
from torch.nn import functional

from linfnet.data import augment, plan_epoch
from linfnet.errors import ArgumentError


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
def test_agrees_with_padding_and_cutting(shape: tuple[int, ...], pad: int) -> None:
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
    """A meta tensor has no values: whatever would wait for the device fails on it."""
    images = torch.empty(8, 3, 32, 32, dtype=torch.uint8, device="meta")
    offsets = torch.empty(8, dtype=torch.int64, device="meta")
    assert augment(images, offsets, offsets, offsets.bool(), 3).shape == images.shape


def test_wrong_shapes_are_named() -> None:
    offsets, no = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    with pytest.raises(ArgumentError, match=r"images has shape \(4, 8, 8\)"):
        augment(torch.zeros(4, 8, 8), offsets, offsets, no, 1)
    with pytest.raises(ArgumentError, match=r"left has shape \(3,\); wanted \[4\]"):
        augment(torch.zeros(4, 1, 8, 8), offsets, offsets[:3], no, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_the_device() -> None:
    images = random_images(64, 3, 32, 32)
    plan = plan_epoch(64, seed=0, epoch=0, pad=3, flip=True)
    there = plan.to("cuda")
    out = augment(images.cuda(), there.top, there.left, there.flip, 3)
    assert torch.equal(out.cpu(), augment(images, plan.top, plan.left, plan.flip, 3))
