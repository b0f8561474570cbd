"""The figures of an epoch: means over samples, and accuracies in which a tie is wrong."""

from functools import partial

import pytest
import torch

from linfnet.recipes import load_recipe
from linfnet.train.metrics import MEANS, accuracy, summarise
from linfnet.train.optimizer import step_state


def test_a_tie_is_wrong():
    logits = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    assert accuracy(logits, torch.zeros(4, dtype=torch.long)) == 0.5


def test_every_sample_has_the_same_weight():
    """The last batch is smaller; the loss is a mean over the batch, the other columns are numbers of samples."""
    record = torch.tensor([[1.0, 30, 30, 10, 0], [1.0, 40, 20, 20, 0], [4.0, 5, 0, 0, 20]])
    sizes = torch.tensor([40.0, 40.0, 20.0], dtype=torch.float64)
    found = summarise(record, sizes, 0, partial(step_state, load_recipe("digits"), steps_per_epoch=3))
    assert found == pytest.approx(dict(zip(MEANS, (1.6, 0.75, 0.5, 0.3, 0.2), strict=True)))
