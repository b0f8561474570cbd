"""Bytes are converted to correctly rounded pixels, which are the same on every device."""

import numpy as np
import pytest
import torch

from linfnet.data import ImageSet, load, set_info, to_pixels
from linfnet.errors import ArgumentError

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("white", [16, 255])
def test_pixels_are_correctly_rounded(white: int) -> None:
    exact = (np.arange(256, dtype=np.float64) / white).astype(np.float32)
    assert np.array_equal(to_pixels(ALL_BYTES, white).numpy(), exact)


def test_multiplying_by_the_reciprocal_differs() -> None:
    assert not torch.equal(ALL_BYTES.float() * torch.tensor(1 / 255), to_pixels(ALL_BYTES, 255))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("white", [16, 255])
def test_pixels_are_the_same_on_the_device(white: int) -> None:
    assert torch.equal(to_pixels(ALL_BYTES.cuda(), white).cpu(), to_pixels(ALL_BYTES, white))


def test_only_bytes_become_pixels() -> None:
    with pytest.raises(ArgumentError, match=r"dtype torch.float32; expected torch.uint8"):
        to_pixels(torch.zeros(2), 255)


@pytest.fixture
def four() -> ImageSet:
    images = torch.arange(4 * 64, dtype=torch.int64).reshape(4, 1, 8, 8) % 17
    return ImageSet(images.to(torch.uint8), torch.tensor([3, 1, 2, 0]), set_info("digits"), "train")


def test_first(four: ImageSet) -> None:
    assert len(four) == 4
    assert len(four.first(None)) == 4
    assert len(four.first(9)) == 4
    two = four.first(2)
    assert two.labels.tolist() == [3, 1]
    assert torch.equal(two.images, four.images[:2])
    with pytest.raises(ArgumentError, match="limit is 0"):
        four.first(0)


def test_held_out_images_are_the_same_in_every_call() -> None:
    whole = load("digits")
    rest, held_out = whole.hold_out(200)
    assert (len(rest), len(held_out)) == (1237, 200)
    assert (rest.split, held_out.split) == ("train", "held-out")
    assert torch.equal(whole.hold_out(200)[1].images, held_out.images)
    # Together they are all images, each in the order of the whole set.
    numbered = ImageSet(torch.zeros(1437, 1, 8, 8, dtype=torch.uint8), torch.arange(1437), set_info("digits"), "train")
    parts = [part.labels.tolist() for part in numbered.hold_out(200)]
    assert sorted(parts[0] + parts[1]) == list(range(1437))
    assert parts == [sorted(part) for part in parts]
    assert set(numbered.hold_out(100)[1].labels.tolist()) < set(parts[1])
    assert parts[1][:4] == [0, 3, 8, 9]
    assert len(held_out.labels.unique()) == 10


@pytest.mark.parametrize("count", [0, -1, 4, 5])
def test_some_images_are_held_out_and_some_stay(four: ImageSet, count: int) -> None:
    with pytest.raises(ArgumentError, match=f"hold_out is {count}; expected a number from 1 to 3, of 4 images"):
        four.hold_out(count)


def test_pixels_of_a_selection(four: ImageSet) -> None:
    whole = four.pixels()
    assert whole.dtype == torch.float32
    assert torch.equal(whole, four.images.float() / 16)
    assert torch.equal(four.pixels(slice(1, 3)), whole[1:3])
    assert torch.equal(four.pixels(torch.tensor([3, 0])), whole[[3, 0]])


def test_pixels_do_not_change_the_bytes(four: ImageSet) -> None:
    before = four.images.clone()
    four.pixels().zero_()
    assert torch.equal(four.images, before)


def test_to_moves_images_and_labels(four: ImageSet) -> None:
    moved = four.to("meta")
    assert (moved.images.device.type, moved.labels.device.type) == ("meta", "meta")
    assert (moved.info, moved.split) == (four.info, "train")


def test_a_loaded_set_can_be_modified() -> None:
    digits = load("digits", "test")
    digits.images.fill_(0)
    assert load("digits", "test").images.any()
