import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from linfnet import evaluation as evaluation_module
from linfnet.data import load
from linfnet.errors import LinfnetError
from linfnet.evaluation import EXAMPLES, evaluate, write_broken
from linfnet.files import read_tensors
from linfnet.theory import nearest_neighbour_net


@pytest.fixture
def net_and_images():
    train, test = load("digits", "train").first(300), load("digits", "test").first(60)
    return nearest_neighbour_net(train.pixels(), train.labels, 10), test


def test_the_sandwich(net_and_images):
    net, test = net_and_images
    done: list[int] = []
    result = evaluate(net, test, (Fraction(0), Fraction(1, 20), Fraction(1, 5)), steps=10, advance=done.append)
    assert sum(done) == 180
    zero, middle, large = (at.summary() for at in result.at)
    assert zero["certified_margin"] == zero["certified_interval"] == zero["pgd"] == result.clean
    assert result.clean >= middle["pgd"] >= middle["certified_interval"] >= middle["certified_margin"] > 0
    assert middle["certified_interval"] >= large["certified_interval"]
    assert net.p == float("inf")


def test_examples_of_broken_samples_are_kept(net_and_images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    monkeypatch.setattr(evaluation_module, "BATCH", 25)
    epsilons = (Fraction(0), Fraction(3, 10))
    result = evaluate(net, test, epsilons, steps=10)
    nothing, broken = result.at[0].broken, result.at[1].broken
    assert len(nothing.index) == 0
    fell = ((result.margins > 0) & ~result.at[1].survived).nonzero().flatten()
    assert len(broken.index) == EXAMPLES < len(fell)
    assert set(broken.index.tolist()) <= set(fell.tolist())
    assert broken.index.tolist() == sorted(fell.tolist(), key=lambda index: -result.radii[index].item())[:EXAMPLES]
    assert (broken.images.double() - test.pixels(broken.index).double()).abs().max() <= 0.3
    assert (broken.predictions != test.labels[broken.index]).all()
    logits = net(broken.images)  # a tie with the true class is broken, too: no logit is above that of the prediction
    assert torch.equal(logits.gather(1, broken.predictions.unsqueeze(1)).squeeze(1), logits.amax(1))
    write_broken(result, tmp_path / "broken.safetensors")
    tensors, metadata = read_tensors(tmp_path / "broken.safetensors")
    assert metadata["attack"] == "pgd-10"
    assert torch.equal(tensors["index@0.3"], broken.index)
    assert tensors["images@0"].shape == (0, 1, 8, 8)


def test_a_net_that_is_always_wrong(net_and_images):
    net, test = net_and_images
    wrong = dataclasses.replace(test, labels=(net(test.pixels()).argmax(1) + 1) % 10)
    result = evaluate(net, wrong, (Fraction(1, 20),), steps=2)
    assert result.clean == 0
    assert set(result.at[0].summary().values()) == {0.0}


def test_a_certified_sample_that_breaks_is_named(net_and_images, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    everything = torch.ones(60, dtype=torch.bool)
    monkeypatch.setattr(evaluation_module, "certified_by_interval", lambda *_: everything)
    with pytest.raises(LinfnetError, match=r"samples \[\d+.* are certified at eps = 0.3 and yet broken"):
        evaluate(net, test, (Fraction(3, 10),), steps=10)
