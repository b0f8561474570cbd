"""Evaluations of nets: accuracies, examples of broken samples, and the check of certificates against the attack."""

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from linfnet.certificates import Certificate, Decided, certificates_of
from linfnet.certificates.exact import Verifier
from linfnet.data import load
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.evaluation import EXAMPLES, evaluate, evaluator, save_evaluation
from linfnet.evaluation.exact import ExactBatches
from linfnet.files import read_tensors, write_tensors
from linfnet.nn import Classifier, LinfNet
from linfnet.results import AttackSettings, ExactAccuracy, read_results
from linfnet.results.storage import broken_files, read_columns, sample_files, witness_path
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
    zero, middle, large = result.results
    assert zero.certified == {"margin": result.clean, "interval": result.clean}
    assert zero.attacked == result.clean
    assert result.clean >= middle.attacked >= middle.certified["interval"] >= middle.certified["margin"] > 0
    assert middle.certified["interval"] >= large.certified["interval"]
    assert (large.data, large.split, large.count, large.limit, large.eps) == ("digits", "test", 60, 60, Fraction(1, 5))
    assert (large.attack, large.arithmetic, large.confidence) == (AttackSettings("pgd", 10), "float32", 1.0)
    assert large.certify_seconds.keys() == large.certified.keys()
    assert net.p == float("inf")


def test_examples_of_broken_samples_are_kept(net_and_images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    monkeypatch.setattr(evaluator, "BATCH", 25)
    epsilons = (Fraction(0), Fraction(3, 10))
    result = evaluate(net, test, epsilons, steps=10)
    nothing, broken = result.at[0].broken, result.at[1].broken
    assert len(nothing.index) == 0
    fell = ((result.margins > 0) & ~result.at[1].survived).nonzero().flatten()
    assert len(broken.index) == EXAMPLES < len(fell)
    assert set(broken.index.tolist()) <= set(fell.tolist())
    assert (
        broken.index.tolist()
        == sorted(fell.tolist(), key=lambda index: -result.radii["margin"][index].item())[:EXAMPLES]
    )
    assert (broken.images.double() - test.pixels(broken.index).double()).abs().max() <= 0.3
    assert (broken.predictions != test.labels[broken.index]).all()
    logits = net(broken.images)  # a tie with the true class is broken, too: no logit is above that of the prediction
    assert torch.equal(logits.gather(1, broken.predictions.unsqueeze(1)).squeeze(1), logits.amax(1))
    save_evaluation(result, tmp_path)
    (file,) = broken_files(tmp_path, result.results[0])
    tensors, metadata = read_tensors(file)
    assert metadata["attack"] == "pgd-10"
    assert torch.equal(tensors["index@0.3"], broken.index)
    assert tensors["images@0"].shape == (0, 1, 8, 8)


def test_a_net_that_is_always_wrong(net_and_images):
    net, test = net_and_images
    wrong = dataclasses.replace(test, labels=(net(test.pixels()).argmax(1) + 1) % 10)
    result = evaluate(net, wrong, (Fraction(1, 20),), steps=2)
    assert result.clean == 0
    (found,) = result.results
    assert {found.attacked, *found.certified.values()} == {0.0}


def test_a_certified_sample_that_breaks_is_named(net_and_images, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    honest = evaluate(net, test, (Fraction(3, 10),), steps=10)
    broken = (~honest.at[0].survived).nonzero().flatten().tolist()

    def unsound(net: Classifier) -> dict[str, Certificate]:
        everything = dataclasses.replace(
            certificates_of(net)["interval"], at=lambda images, labels, eps: torch.ones_like(labels, dtype=torch.bool)
        )
        return {"interval": everything}

    monkeypatch.setattr(evaluator, "certificates_of", unsound)
    with pytest.raises(LinfnetError) as caught:
        evaluate(net, test, (Fraction(3, 10),), steps=10)
    assert str(caught.value).startswith(f"samples {broken[:20]}")
    assert "are certified at eps = 0.3, but an attack broke them: " in str(caught.value)


def test_epsilons_may_be_numbers_or_text(net_and_images, tmp_path: Path):
    net, test = net_and_images
    found = evaluate(net, test, (8 / 255, "8/255", 0.1), steps=1)
    assert [result.eps for result in found.results][1:] == [Fraction(8, 255), Fraction(1, 10)]
    save_evaluation(found, tmp_path)
    assert read_results(tmp_path).evaluations == found.results
    (table,) = sample_files(tmp_path, found.results[0])
    assert "certified_margin@8/255" in read_columns(table)


def test_a_net_runs_once_on_attacked_images(net_and_images, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    forward, calls = type(net).forward, []
    monkeypatch.setattr(type(net), "forward", lambda net, images: calls.append(len(images)) or forward(net, images))
    evaluate(net, test, (Fraction(1, 20),), steps=3)
    # Logits of all images, three steps of the attack, and one pass on its result. The margin calls `measure` instead.
    assert sum(size == 60 for size in calls) == 1
    assert sum(0 < size < 60 for size in calls) == 4


def test_an_epsilon_just_above_the_radius_is_not_certified(net_and_images):
    net, test = net_and_images
    radii = evaluate(net, test, "0.1", steps=1).radii["margin"]
    radius = Fraction(radii[radii > 0].max().item())
    found = evaluate(net, test, [radius, radius + Fraction(1, 10**12)], steps=1)
    assert [int(each.certified["margin"].sum()) for each in found.at] == [1, 0]


def test_an_attack_without_steps_is_refused(net_and_images):
    with pytest.raises(ArgumentError, match="steps is 0; expected a number of at least 1"):
        evaluate(*net_and_images, [0.1], steps=0)


def test_exact_accuracy_is_between_certified_and_attacked(net_and_images, tmp_path: Path):
    net, test = net_and_images
    result = evaluate(net, test, (Fraction(0), Fraction(1, 10), Fraction(1, 5)), steps=2, exact=True)
    for at, found in zip(result.at, result.results, strict=True):
        assert found.best_certified <= found.exact.robust <= found.attacked
        assert found.exact == ExactAccuracy(at.exact.double().mean().item(), 0.0)
        correct = result.margins > 0
        assert at.witnesses.index.tolist() == (correct & ~at.exact).nonzero().flatten().tolist()
        assert not net.keeps_class(at.witnesses.images, test.labels[at.witnesses.index]).any()
        change = at.witnesses.images.double() - test.pixels(at.witnesses.index).double()
        assert not len(change) or change.abs().max() <= float(at.eps)
    assert result.results[0].exact.robust == result.clean
    assert "exact" in repr(result)
    save_evaluation(result, tmp_path)
    assert read_results(tmp_path).evaluations == result.results
    (file,) = sample_files(tmp_path, result.results[0])
    assert read_columns(file)["exact@0.2"] == tuple(str(int(flag)) for flag in result.at[2].exact)
    assert len(read_tensors(witness_path(file))[0]["index@0.2"]) == len(result.at[2].witnesses.index)


@pytest.mark.parametrize("suffix", [".csv", ".broken.safetensors", ".witnesses.safetensors"])
def test_a_killed_evaluation_is_not_in_the_results(net_and_images, tmp_path: Path, monkeypatch, suffix: str):
    """A study repeats only evaluations that are not in results.json, so all other files are written before it."""
    net, test = net_and_images
    result, rename = evaluate(net, test.first(5), ["0.1"], steps=1, exact=True), Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target.name.endswith(suffix):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        save_evaluation(result, tmp_path)
    assert read_results(tmp_path).evaluations == ()


def test_an_interrupted_exact_evaluation_continues(net_and_images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net, test = net_and_images
    monkeypatch.setattr(evaluator, "BATCH", 20)
    searched: list[int] = []
    original = Verifier.decide

    def counted(self, images, *arguments):
        searched.append(len(images))
        if len(searched) == 2:
            raise KeyboardInterrupt
        return original(self, images, *arguments)

    monkeypatch.setattr(Verifier, "decide", counted)
    arguments = {"steps": 2, "exact": True, "partial": tmp_path / "partial"}
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, test, "0.2", **arguments)
    continued = evaluate(net, test, "0.2", **arguments)
    assert searched == [20, 20, 20, 20]  # the first batch was not decided again
    whole = evaluate(net, test, "0.2", steps=2, exact=True)
    assert torch.equal(continued.at[0].exact, whole.at[0].exact)
    assert torch.equal(continued.at[0].witnesses.images, whole.at[0].witnesses.images)


class TestStoredVerdicts:
    """A stored batch is used only for the same net, and only if it is whole."""

    IMAGES, LABELS, EPS = torch.tensor([[[[0.3]]]]), torch.tensor([0]), Fraction(1, 10)

    def net(self, **options: Any) -> LinfNet:
        net = LinfNet((1, 1, 1), 2, (), identity_init=False, **options).eval()
        net.layers[0].weight.data.copy_(torch.tensor([[0.0], [1.0]]))
        net.layers[0].bias.data.zero_()
        return net

    def decide(self, net: LinfNet, partial: Path | None, eps: Fraction = EPS) -> Decided:
        return ExactBatches(net, partial=partial).decide(self.IMAGES, self.LABELS, eps, self.IMAGES)

    def test_another_epsilon(self, tmp_path: Path):
        robust = [self.decide(self.net(), tmp_path, eps).robust.item() for eps in (self.EPS, Fraction(1, 2))]
        assert robust == [True, False]

    @pytest.mark.parametrize("options", [{"negate_logits": False}, {"std": 0.1}], ids=str)
    def test_another_net(self, tmp_path: Path, options: dict[str, Any]):
        assert self.decide(self.net(), tmp_path).robust.tolist() == [True]
        other = self.net(**options)
        assert self.decide(other, tmp_path).robust.tolist() == self.decide(other, None).robust.tolist() == [False]

    @pytest.mark.parametrize("damage", ["shape", "names", "digest"])
    def test_damaged_files(self, tmp_path: Path, damage: str):
        expected = self.decide(self.net(), tmp_path)
        (path,) = tmp_path.iterdir()
        tensors, metadata = read_tensors(path)
        if damage == "shape":
            tensors["robust"] = torch.zeros(5, dtype=torch.bool)
        elif damage == "names":
            del tensors["broken"]
        write_tensors(path, tensors, metadata)
        if damage == "digest":
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        assert self.decide(self.net(), tmp_path).robust.tolist() == expected.robust.tolist()

    def test_weights_that_changed_between_two_calls(self):
        net = self.net()
        batches = ExactBatches(net)
        assert batches.decide(self.IMAGES, self.LABELS, self.EPS, self.IMAGES).robust.tolist() == [True]
        with torch.no_grad():
            net.layers[0].bias.add_(torch.tensor([0.5, 0.0]))
        assert batches.decide(self.IMAGES, self.LABELS, self.EPS, self.IMAGES).robust.tolist() == [False]
