"""Entries of the catalog are complete, and misspelt names get a hint."""

import pytest

from linfnet.data import known_sets, load, set_info
from linfnet.errors import LinfnetError


def test_known_sets() -> None:
    assert known_sets() == ("digits", "mnist", "fashion-mnist", "cifar10")


@pytest.mark.parametrize("name", known_sets())
def test_each_entry_is_complete(name: str) -> None:
    info = set_info(name)
    assert info.name == name
    assert len(info.mean) == info.image_shape[0]
    assert len(set(info.classes)) == 10
    assert set(info.sizes) == set(info.digests) == {"train", "test"}
    assert all(len(bytes.fromhex(digest)) == 32 for digest in info.digests.values())
    assert hash(info) == hash(set_info(name))


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", (0.1307,), 0.3081),
        ("fashion-mnist", (0.2860,), 0.3520),
        ("cifar10", (0.4914, 0.4822, 0.4465), 0.2009),
    ],
)
def test_published_constants(name: str, mean: tuple[float, ...], std: float) -> None:
    assert (set_info(name).mean, set_info(name).std) == (mean, std)


def test_mean_and_std_of_the_digits() -> None:
    pixels, info = load("digits").pixels().double(), set_info("digits")
    assert (round(pixels.mean().item(), 4),) == info.mean
    assert round(pixels.std(correction=0).item(), 4) == info.std


@pytest.mark.parametrize(
    ("name", "near"), [("cifar-10", "cifar10"), ("MNIST", "mnist"), ("fashion", "fashion-mnist"), ("digit", "digits")]
)
def test_a_misspelt_name_gets_a_hint(name: str, near: str) -> None:
    with pytest.raises(LinfnetError, match=f"the data set is '{name}'; expected one of .*; did you mean '{near}'"):
        set_info(name)


def test_an_unknown_name_gets_the_list_of_names() -> None:
    with pytest.raises(LinfnetError, match=r"'xyzzy'; expected one of digits, mnist, fashion-mnist, cifar10$"):
        set_info("xyzzy")
