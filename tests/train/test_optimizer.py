import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from linfnet.nn import LinfNet, SparseDistance, SparseNet
from linfnet.recipes import load_recipe
from linfnet.train import Trainer, step_state
from linfnet.train.optimizer import decay_rows, decay_weights


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 8.0, 89.4, 999.0])
def test_rows_decay_by_the_formula(p: float):
    torch.manual_seed(0)
    weight = 3 * torch.rand(4, 7, dtype=torch.float64) - 1.5  # 1.5^999 is still finite
    expected = weight.clone()
    for row in expected:
        norm = float(row.abs().pow(p).sum().pow(1 / p))
        row -= 0.1 * (row.abs() / norm).pow(p - 2) * row
    decay_rows(weight, p, 0.1)
    assert torch.allclose(weight, expected, rtol=1e-12, atol=0)


def test_plain_decay_at_2_and_for_a_bias():
    weight, bias = torch.randn(3, 5), torch.randn(6)
    before = weight.clone(), bias.clone()
    decay_rows(weight, 2.0, 0.25)
    decay_rows(bias, 8.0, 0.25)
    assert torch.allclose(weight, 0.75 * before[0])
    assert torch.allclose(bias, 0.75 * before[1])


def test_large_p_tends_to_the_largest_entry_alone():
    torch.manual_seed(1)
    weight = torch.randn(5, 9, dtype=torch.float64)
    near, at = weight.clone(), weight.clone()
    decay_rows(near, 1e5, 0.1)
    decay_rows(at, math.inf, 0.1)
    assert torch.allclose(near, at)
    changed = at != weight
    assert changed.sum(1).tolist() == [1] * 5
    assert torch.equal(changed.int().argmax(1), weight.abs().argmax(1))


@pytest.mark.parametrize("p", [1.0, 8.0, 999.0, math.inf])
def test_zeros_and_large_weights_stay_finite(p: float):
    weight = torch.tensor([[0.0, 0.0, 0.0], [1e30, 0.0, -1e-30]])
    decay_rows(weight, p, 0.5)
    assert weight.isfinite().all()
    assert weight[0].tolist() == [0.0, 0.0, 0.0]
    assert weight[1, 0].item() == pytest.approx(0.5e30)


def test_each_layer_decays_at_its_p_and_the_scale_does_not():
    net = LinfNet((1, 4, 4), 3, (8,), p=8.0)
    expected = [layer.weight.detach().clone() for layer in net.layers]
    for weight in expected:
        decay_rows(weight, 8.0, 0.2)
    decay_weights(net, 0.2)
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(net.layers, expected, strict=True))
    assert net.scale.item() == 1.0


@pytest.mark.parametrize("p", [1.0, 2.0, 8.0, 999.0, math.inf])
def test_the_neurons_of_a_sparse_layer_decay_like_rows(p: float):
    weight = torch.tensor([1.0, -3.0, 3.0, 0.5, -2.0, 0.0, 0.0])  # the third neuron has only zeros
    index, offsets, bias = torch.tensor([0, 2, 3, 1, 2, 0, 3]), torch.tensor([0, 3, 5, 7]), torch.randn(3)
    net = SparseNet((1, 2, 2), 3, [SparseDistance(weight, index, offsets, 4, bias=bias)])
    net.p = p
    rows = [row.clone()[None] for row in weight.split([3, 2, 2])]
    for row in rows:
        decay_rows(row, p, 0.2)
    decay_weights(net, 0.2)
    layer = net.sparse_layers()[0]
    torch.testing.assert_close(layer.weight.detach(), torch.cat(rows, 1)[0])
    torch.testing.assert_close(layer.bias, 0.8 * bias, check_dtype=False)


def test_training_decays_before_the_step_at_the_present_rate(new_trainer: Callable[..., Trainer]):
    """With a huge eps, Adam's steps vanish, and only the decay changes the weights."""
    trainer = new_trainer("run", "weight_decay=0.5", "optimizer.eps=1e9", "hold_lr=true", "lr=0.02")
    expected = [layer.weight.detach().clone() for layer in trainer.net.layers]
    for weight in expected:
        decay_rows(weight, 8.0, 0.02 * 0.5)
    pixels, labels = next(trainer.batches.epoch(0))
    trainer._step(0, pixels, labels)
    for layer, weight in zip(trainer.net.layers, expected, strict=True):
        assert torch.allclose(layer.weight, weight, rtol=1e-6, atol=1e-9)


def test_long_gradients_are_clipped(new_trainer: Callable[..., Trainer]):
    moved = list[Tensor]()
    for clip in ("0", "1e-3", "1e9"):
        trainer = new_trainer(f"clip-{clip}", f"clip={clip}")
        trainer._step(0, *next(trainer.batches.epoch(0)))
        lengths = [weight.grad.double().norm() for weight in trainer.net.parameters() if weight.grad is not None]
        moved.append(torch.stack(lengths).norm())
    assert moved[0] == moved[2] > 0.01
    assert moved[1] == pytest.approx(1e-3, rel=1e-3)


def test_the_rate_follows_the_drops_of_the_recipe():
    recipe = load_recipe("digits", ["schedule.lr_drops=[0.5, 0.75]", "lr_drop=0.1", "lr=1.0"])
    assert [step_state(recipe, step, 1).lr for step in (0, 39, 40, 60)] == pytest.approx([1, 1, 0.1, 0.01])
