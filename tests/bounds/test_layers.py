"""Which layers have bounds, and which are refused."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from linfnet.bounds import Method, Ramp, margin_bounds
from linfnet.errors import ArgumentError


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (nn.Softmax(1), "the net has a layer Softmax; bounds are implemented for Linear"),
        (nn.Conv2d(1, 1, 3, padding="same"), "expected zeros as padding, and its size as a number"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), "expected zeros as padding"),
        (nn.AvgPool2d(2, padding=1), "expected no padding"),
        (nn.AvgPool2d(3, ceil_mode=True), "expected no padding, no ceil_mode"),
        (nn.Flatten(2), "expected start_dim=1 and end_dim=-1"),
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


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return input + super().forward(input)


class Doubled(nn.Identity):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2 * input


class Standardised(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        return super()._conv_forward(input, weight / weight.std(), bias)


class Called(nn.Linear):
    def __call__(self, input: Tensor) -> Tensor:  # noqa: A002
        return 3 * super().__call__(input)


def replaced(layer: nn.Module) -> nn.Module:
    layer.forward = lambda x: 2 * x  # pyright: ignore
    return layer


def hooked(layer: nn.Module) -> nn.Module:
    def double(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return 2 * output

    layer.register_forward_hook(double)
    return layer


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize(
    ("net", "complaint"),
    [
        (Residual(nn.Linear(3, 3)), "a layer Residual that overrides forward of Sequential"),
        (nn.Sequential(Residual(nn.Linear(3, 3)), nn.ReLU()), "a layer Residual that overrides"),
        (nn.Sequential(Doubled(), nn.Linear(3, 3)), "a layer Doubled that overrides forward of Identity"),
        (nn.Sequential(replaced(nn.ReLU())), "a layer ReLU that overrides forward"),
        (nn.Sequential(hooked(nn.Linear(3, 3))), "a layer Linear with a forward hook"),
        (hooked(nn.Sequential(nn.Linear(3, 3))), "a layer Sequential with a forward hook"),
        (nn.Linear(3, 3), "the net is a Linear; expected an nn.Sequential or a list"),
        (nn.Sequential(Called(3, 3)), "a layer Called that overrides __call__ of Linear"),
        (nn.Sequential(Standardised(1, 1, 1)), "a layer Standardised that overrides _conv_forward of Conv2d"),
        (nn.Sequential(nn.Linear(3, 3)).children(), "the net is a generator; expected an nn.Sequential or a list"),
        (nn.Sequential(), "the net has no layers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_net_that_computes_something_else_is_refused(net: nn.Sequential, complaint: str, method: Method):
    lower = torch.zeros(1, 3)
    with pytest.raises(ArgumentError, match=complaint):
        margin_bounds(net, lower, lower + 1, torch.tensor([0]), method)


@pytest.mark.parametrize("method", get_args(Method))
def test_a_relu_in_place_has_the_same_bounds(method: Method):
    def net(inplace: bool) -> nn.Sequential:
        torch.manual_seed(0)
        activations = [nn.ReLU(inplace=inplace) for _ in range(3)]
        return nn.Sequential(
            activations[0], nn.Linear(6, 10), activations[1], nn.Linear(10, 10), activations[2], nn.Linear(10, 3)
        )

    lower, labels = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])
    given = lower.clone()
    found = margin_bounds(net(True), given, lower + 1, labels, method, centre=given)
    assert torch.equal(given, lower)
    assert torch.equal(found, margin_bounds(net(False), lower, lower + 1, labels, method))


IMAGES, LABELS = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize(
    ("lower", "upper", "labels", "complaint"),
    [
        (IMAGES, IMAGES - 0.1, LABELS, "lower is above upper"),
        (IMAGES, IMAGES[:1], LABELS, r"upper has shape \(1, 1, 4, 4\)"),
        (IMAGES, IMAGES, LABELS[:1], r"labels has shape \(1,\) and dtype torch.int64; expected \(2,\)"),
        (IMAGES, IMAGES, LABELS.int(), "labels has shape .* and dtype torch.int32"),
        (IMAGES, IMAGES, LABELS + 2, "labels are not all from 0 to 2"),
        (IMAGES, IMAGES, LABELS - 1, "labels are not all from 0 to 2"),
        (IMAGES.double(), IMAGES.double(), LABELS, "lower has dtype torch.float64; expected the dtype of the net"),
        (IMAGES.byte(), IMAGES.byte(), LABELS, "lower has dtype torch.uint8"),
        (IMAGES[:, 0], IMAGES[:, 0], LABELS, r"a Conv2d layer has inputs of shape \(4, 4\); expected images"),
    ],
)
def test_wrong_arguments_are_named(lower: Tensor, upper: Tensor, labels: Tensor, complaint: str, method: Method):
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
    with pytest.raises(ArgumentError, match=complaint):
        margin_bounds(net, lower, upper, labels, method)
    with pytest.raises(ArgumentError, match=r"outputs of shape \(2, 3, 3\) for each input; expected logits"):
        margin_bounds([net[0], net[1]], IMAGES, IMAGES, LABELS, method)
    with pytest.raises(ArgumentError, match="slope is 'steep'; expected"):
        margin_bounds(net, IMAGES, IMAGES, LABELS, method, slope="steep")  # pyright: ignore[reportArgumentType]


def test_a_layer_with_another_parametrization_is_accepted():
    torch.manual_seed(0)
    plain, lower, labels = nn.Linear(2, 3), torch.zeros(1, 2), torch.tensor([0])
    expected = margin_bounds([plain], lower, lower + 1, labels)
    torch.testing.assert_close(margin_bounds([weight_norm(plain)], lower, lower + 1, labels), expected)


def test_a_hook_of_all_modules_is_refused():
    hook = nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: None)
    try:
        with pytest.raises(ArgumentError, match="a forward hook of all modules"):
            margin_bounds([nn.Linear(3, 3)], torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([0]))
    finally:
        hook.remove()


def image_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    ).eval()


@pytest.mark.parametrize("method", get_args(Method))
def test_forms_of_nets_and_of_calls(method: Method):
    net, ends = image_net(), (IMAGES - 0.1, IMAGES + 0.1, LABELS)
    expected = margin_bounds(net, *ends, method)
    assert torch.equal(margin_bounds(nn.ModuleList(net), *ends, method), expected)
    together = torch.vmap(lambda *one: margin_bounds(net, *(each[None] for each in one), method)[0])
    torch.testing.assert_close(together(*ends), expected)
    assert margin_bounds(net, *(each[:0] for each in ends), method).shape == (0, 3)
    channels_last = image_net().to(memory_format=torch.channels_last)
    torch.testing.assert_close(margin_bounds(channels_last, *ends, method), expected)


def test_arguments_that_are_no_tensors_are_named():
    with pytest.raises(ArgumentError, match="labels is a list; expected a tensor"):
        margin_bounds(image_net(), IMAGES, IMAGES, [0, 1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"slope is 2\.0; expected a number of at most 1"):
        Ramp((1,), slope=2.0)
