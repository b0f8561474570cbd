"""The separation of labelled sets, compared with a full search in float64."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import linfnet.theory.separation as module
from linfnet.data import load
from linfnet.errors import ArgumentError
from linfnet.theory import pairs_to_compare, point_separation, set_separation

SMALL = {
    "FIRST_COORDINATES": 2,
    "SECOND_COORDINATES": 3,
    "ROWS": 20,
    "COLUMNS": 30,
    "CLOSEST": 8,
    "SAMPLE": 8,
    "ELEMENTS": 1000,
}


def all_distances(x: Tensor, labels: Tensor, other: tuple[Tensor, Tensor] | None = None) -> list[float]:
    """Return the sorted distances of all pairs of different classes, in float64."""
    y, other_labels = other if other is not None else (x, labels)
    distance = (x.flatten(1).double()[:, None] - y.flatten(1).double()[None]).abs().amax(-1)
    apart = labels[:, None] != other_labels[None]
    if other is None:
        apart &= torch.ones_like(apart).triu(1)
    return distance[apart].sort().values.tolist()


@pytest.fixture(scope="module", autouse=True)
def _small_steps() -> Iterator[None]:
    """Make steps and blocks so small that a few samples pass through all of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(module, name, value)
        yield


@st.composite
def labelled_sets(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, m, d = draw(st.integers(2, 250)), draw(st.integers(1, 250)), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    bytes_ = draw(st.booleans())
    x, y = (torch.randint(256, (size, d), generator=generator).to(torch.uint8) for size in (n, m))
    labels, other = (torch.randint(-1, 3, (size,), generator=generator) for size in (n, m))
    labels[:2] = torch.tensor([0, 1])
    return (x, labels, y, other) if bytes_ else (x / 255, labels, y / 255, other)


@given(sets=labelled_sets(), count=st.integers(1, 9))
def test_the_cascade_finds_the_closest_pairs(sets: tuple[Tensor, Tensor, Tensor, Tensor], count: int):
    x, labels, y, other = sets
    for against in (None, (y, other)):
        found = point_separation(x, labels, against, count=count)
        everything = all_distances(x, labels, against)
        assert len(everything) == pairs_to_compare(labels, None if against is None else other)
        wanted = everything[:count]
        # float32 differences of float32 numbers in [0, 1] have an error of at most 2^-25.
        tolerance = 0 if x.dtype == torch.uint8 else 2.0**-25
        assert [float(pair.distance) for pair in found.pairs] == pytest.approx(wanted, abs=tolerance, rel=0)
        second, second_labels = (x, labels) if against is None else against
        for pair in found.pairs:
            assert labels[pair.first] != second_labels[pair.second]
            apart = x[pair.first].double() - second[pair.second].double()
            assert float(pair.distance) == pytest.approx(apart.abs().max().item(), abs=tolerance, rel=0)
        ends = [(pair.first, pair.second) for pair in found.pairs]
        assert len({frozenset(pair) if against is None else pair for pair in ends}) == len(ends)


def test_many_candidates_and_all_the_pairs_there_are():
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.rand(160, 3, generator=generator), torch.arange(160) % 2
    done: list[int] = []
    found = point_separation(x, labels, count=10**6, advance=done.append)
    assert sum(done) == pairs_to_compare(labels) == 80 * 80 == len(found.pairs)
    assert [float(pair.distance) for pair in found.pairs] == pytest.approx(all_distances(x, labels), abs=2.0**-25)


def test_real_digits():
    train, test = load("digits", "train"), load("digits", "test")
    found = set_separation(train)
    assert found.radius == Fraction(7, 32)
    wanted = all_distances(train.images, train.labels, (test.images, test.labels))[0]
    assert set_separation(train, test).distance == Fraction(int(wanted), 16)


def test_equal_images_of_two_classes_have_no_separation():
    x = torch.tensor([[0, 5], [3, 3], [0, 5]], dtype=torch.uint8)
    found = point_separation(x, torch.tensor([0, 0, 1]))
    assert found.radius == 0
    assert {found.pairs[0].first, found.pairs[0].second} == {0, 2}


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0), "points are empty"),
        (torch.zeros(1, 2), torch.tensor([3]), "there is one sample of class 3"),
        (torch.zeros(4, 2), torch.tensor([1, 1, 1, 1]), "all 4 samples are of class 1"),
        (torch.zeros(4, 2), torch.tensor([1, 1, 1]), "expected .n, .... and .n."),
        (torch.zeros(4, 2).long(), torch.tensor([0, 1, 1, 1]), "expected bytes or floats"),
        (torch.full((2, 2), torch.nan), torch.tensor([0, 1]), "non-finite"),
    ],
)
def test_what_has_no_separation_says_so(points: Tensor, labels: Tensor, message: str):
    with pytest.raises(ArgumentError, match=message):
        point_separation(points, labels)


def test_other_mistakes():
    x, labels = torch.rand(2, 3), torch.tensor([0, 1])
    with pytest.raises(ArgumentError, match="count is 0"):
        point_separation(x, labels, count=0)
    with pytest.raises(ArgumentError, match="expected the same dtype and shape"):
        point_separation(x, labels, (torch.rand(2, 4), labels))
