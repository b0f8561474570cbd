"""The joined results of several processes equal those of a single one."""

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from linfnet.data import load
from linfnet.distributed.group import Group
from linfnet.distributed.sharding import join, own_part
from linfnet.evaluation import evaluate, evaluator
from linfnet.nn import LinfNet
from linfnet.theory import nearest_neighbour_net


class Recorded(Group):
    """One of several processes, whose results are recorded instead of sent."""

    sent: list

    def all(self, mine: object) -> list:
        self.sent.append(mine)
        return [mine]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_parts_joined_are_the_whole(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluator, "BATCH", 20)  # four batches, the last of 9 images
    train, test = load("digits", "train").first(300), load("digits", "test").first(69)
    net = nearest_neighbour_net(train.pixels(), train.labels, 10)
    epsilons = (Fraction(1, 20), Fraction(3, 10))
    whole = evaluate(net, test, epsilons, steps=6, seed=3)
    monkeypatch.setattr(Recorded, "sent", [], raising=False)
    for rank in range(size):
        evaluate(net, test, epsilons, steps=6, seed=3, group=Recorded(rank, size))
    parts = [own_part(69, 20, Group(rank, size)) for rank in range(size)]
    assert [len(part.labels) for part in Recorded.sent] == [part.stop - part.start for part in parts]
    found = join(Recorded.sent)
    found = replace(found, limit=whole.limit, at=tuple(replace(at, broken=at.broken.best()) for at in found.at))
    assert len(whole.at[1].broken.index) > 0
    compare(whole, found)
    for one, other in zip(found.results, whole.results, strict=True):
        assert replace(one, seconds=0, certify_seconds={}) == replace(other, seconds=0, certify_seconds={})


def compare(one: Any, other: Any) -> None:
    """Every value in both must be the same, apart from durations."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif is_dataclass(one):
        for field in fields(one):
            if "seconds" not in field.name:
                compare(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            compare(one[key], other[key])
    elif isinstance(one, tuple):
        for pair in zip(one, other, strict=True):
            compare(*pair)
    else:
        assert one == other


def test_durations_are_joined_by_their_own_rules():
    net = LinfNet((1, 8, 8), 10)
    (at,) = evaluate(net, load("digits", "test").first(2), (Fraction(1, 20),), steps=1).at
    parts = [replace(at, seconds=s, certify_seconds={"margin": s, "interval": 2 * s}) for s in (1.0, 3.0)]
    found = join(parts)
    assert (found.seconds, found.certify_seconds) == (3.0, {"margin": 4.0, "interval": 8.0})
    assert len(found.survived) == 4
