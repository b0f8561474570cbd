"""Which layers have bounds, and which are refused."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from linfnet.bounds import Method, margin_bounds
from linfnet.errors import ArgumentError


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (nn.Softmax(1), "the net has a layer Softmax; bounds are implemented for Linear"),
        (nn.Conv2d(1, 1, 3, padding="same"), "expected zero padding by numbers"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "expected zero padding by numbers"),
        (nn.AvgPool2d(2, padding=1), "expected zero padding by numbers"),
        (nn.AvgPool2d(3, ceil_mode=True), "expected zero padding by numbers, and no other options"),
        (nn.Flatten(2), "expected zero padding by numbers, and no other options"),
    ],
)
def test_other_layers_are_refused(layer: nn.Module, complaint: str):
    with pytest.raises(ArgumentError, match=complaint):
        margin_bounds([layer], torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4), torch.tensor([0]))


@pytest.mark.parametrize("method", get_args(Method))
def test_a_linear_layer_on_images_is_refused(method: Method):
    """torch applies it to each row of the image, whose number of channels may be that of the features."""
    net = [nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)]
    images = torch.zeros(1, 1, 3, 3)
    with pytest.raises(ArgumentError, match=r"inputs of shape \(2, 2, 2\); expected a Flatten layer"):
        margin_bounds(net, images, images, torch.tensor([0]), method)


def test_a_layer_that_computes_something_else_is_refused():
    class Cubed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) ** 3

    lower, labels = torch.zeros(1, 2), torch.tensor([0])
    with pytest.raises(ArgumentError, match="a layer Cubed that overrides forward of Linear"):
        margin_bounds([Cubed(2, 3)], lower, lower + 1, labels)


def test_a_layer_with_another_parametrization_is_accepted():
    torch.manual_seed(0)
    plain, lower, labels = nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])
    expected = margin_bounds([plain], lower, lower + 1, labels)
    torch.testing.assert_close(margin_bounds([weight_norm(plain)], lower, lower + 1, labels), expected)
