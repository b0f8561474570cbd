import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.losses import clipped_hinge, hinge, margin_shares, mixture, scaled_cross_entropy, thresholded
from linfnet.nn.margin import margin

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1])


def test_margin_is_true_class_minus_best_other():
    assert margin(LOGITS, LABELS).tolist() == [1.0, -3.0, 0.0]


def test_losses_by_hand():
    # margins 1, -3, 0 with threshold 2: hinge terms 0.5, 2.5, 1
    assert hinge(LOGITS, LABELS, 2.0).item() == pytest.approx(4.0 / 3)
    assert clipped_hinge(LOGITS, LABELS, 2.0).item() == pytest.approx(2.5 / 3)
    terms = [
        math.log(sum(math.exp(3 * z) for z in row)) - 3 * row[y]
        for row, y in zip(LOGITS.tolist(), LABELS.tolist(), strict=True)
    ]
    assert scaled_cross_entropy(LOGITS, LABELS, 3.0).item() == pytest.approx(sum(terms) / 3)
    total = mixture(LOGITS, LABELS, threshold=2.0, mixing=0.1, scale=3.0).item()
    assert total == pytest.approx(0.1 * sum(terms) / 3 + 2.5 / 3)


def test_class_mixing_and_required_by_hand():
    # gaps to the true class: (0, 1, 2), (0, -3, -1), (0, 0, 1); terms at threshold 2 for the two other classes
    terms = [(0.5, 0.0), (2.5, 1.5), (1.0, 0.5)]
    expected = sum(0.75 * max(pair) + 0.25 * sum(pair) / 3 for pair in terms) / 3
    assert hinge(LOGITS, LABELS, 2.0, max_share=0.75).item() == pytest.approx(expected)
    # Half the threshold is asked for, in units of the whole: every term is 0.5 less, or 0.
    cooler = [tuple(max(term - 0.5, 0) for term in pair) for pair in terms]
    expected = sum(0.75 * max(pair) + 0.25 * sum(pair) / 3 for pair in cooler) / 3
    assert hinge(LOGITS, LABELS, 2.0, max_share=0.75, required=0.5).item() == pytest.approx(expected)


def test_lowering_the_true_logit_lowers_every_margin():
    assert margin(thresholded(LOGITS, LABELS, 0.5), LABELS).tolist() == [0.5, -3.5, -0.5]


def test_the_clipped_hinge_equals_the_max_over_classes_of_clipped_terms():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 7, dtype=torch.float64), torch.randint(7, (50,))
    gaps = logits.gather(1, labels[:, None]) - logits
    terms = (1 - gaps / 0.7).clamp(0, 1).scatter(1, labels[:, None], 0.0)
    assert clipped_hinge(logits, labels, 0.7).item() == pytest.approx(terms.max(1).values.mean().item())


def test_misclassified_samples_get_no_gradient_from_the_clipped_hinge():
    logits = LOGITS.clone().requires_grad_()
    clipped_hinge(logits, LABELS, 2.0).backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[0].tolist() == pytest.approx([-1 / 6, 1 / 6, 0.0])


def test_the_scale_learns_from_the_cross_entropy_alone():
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    mixture(LOGITS, LABELS, threshold=2.0, mixing=0.0, scale=scale).backward()
    assert scale.grad is not None
    assert scale.grad.item() == 0.0
    mixture(LOGITS, LABELS, threshold=2.0, mixing=1.0, scale=scale).backward()
    assert scale.grad.item() != 0.0


def test_all_losses_have_right_gradients():
    torch.manual_seed(1)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    labels, scale = torch.randint(5, (6,)), torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: hinge(z, labels, 0.9), (logits,))
    assert torch.autograd.gradcheck(lambda z: hinge(z, labels, 0.9, max_share=0.6, required=0.8), (logits,))
    assert torch.autograd.gradcheck(lambda z: thresholded(z, labels, 0.9).logsumexp(1), (logits,))
    assert torch.autograd.gradcheck(lambda z: clipped_hinge(z, labels, 0.9), (logits,))
    assert torch.autograd.gradcheck(
        lambda z, s: mixture(z, labels, threshold=0.9, mixing=0.2, scale=s), (logits, scale)
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 5))
def test_margin_shares_count_every_sample_once(seed: int, threshold: float):
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(40, 4, generator=generator), torch.randint(4, (40,), generator=generator)
    shares = margin_shares(logits, labels, threshold)
    gaps = margin(logits, labels)
    assert shares.sum().item() == 40
    assert shares.tolist() == [(gaps > threshold).sum(), ((gaps >= 0) & (gaps <= threshold)).sum(), (gaps < 0).sum()]
