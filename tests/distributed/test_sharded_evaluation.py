"""The joined results of several processes equal those of a single one."""

from dataclasses import fields
from fractions import Fraction

import pytest
import torch

from linfnet import evaluation as evaluation_module
from linfnet.data import load
from linfnet.distributed.evaluation import evaluate_together, join, own_images
from linfnet.distributed.group import Group
from linfnet.evaluation import evaluate
from linfnet.theory import nearest_neighbour_net


class Recorded(Group):
    """One of several processes, whose results are recorded instead of sent."""

    sent: list

    def all(self, mine: object) -> list:
        self.sent.append(mine)
        return [mine]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_parts_joined_are_the_whole(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation_module, "BATCH", 20)  # four batches, the last of 9 images
    train, test = load("digits", "train").first(300), load("digits", "test").first(69)
    net = nearest_neighbour_net(train.pixels(), train.labels, 10)
    epsilons = (Fraction(1, 20), Fraction(3, 10))
    whole = evaluate(net, test, epsilons, steps=6, seed=3)
    monkeypatch.setattr(Recorded, "sent", [], raising=False)
    for rank in range(size):
        evaluate_together(net, test, epsilons, Recorded(rank, size), steps=6, seed=3)
    assert [len(part.labels) for part in Recorded.sent] == [len(own_images(test, Group(r, size))) for r in range(size)]
    found = join(Recorded.sent)
    for name in ("logits", "labels", "margins", "radii", "real_radii"):
        assert torch.equal(getattr(found, name), getattr(whole, name)), name
    assert len(whole.at[1].broken.index) > 0
    for one, other in zip(found.at, whole.at, strict=True):
        for name in ("by_margin", "by_interval", "survived"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        for field in fields(one.broken):
            assert torch.equal(getattr(one.broken, field.name), getattr(other.broken, field.name)), field.name
        assert one.summary() == other.summary()
