"""Wrapped nets: what is accepted, what is refused by name, and that what runs is what was analysed."""

import copy
import math
import pickle
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linfnet.attacks import best_pgd, square_attack
from linfnet.certificates import certified_by_interval, certify_by_margin, certify_images
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import (
    Classifier,
    LinfNet,
    LpDistance,
    LpDistanceConv2d,
    MeanShift,
    Nonexpansive,
    WrappedNet,
    reestimate_means,
)
from linfnet.nn.label_margin import label_on_top


class Body(nn.Module):
    """An own forward pass on vectors of two numbers, with a part that a test supplies."""

    def __init__(self, part: Callable[["Body", Tensor], Tensor] = lambda body, x: x) -> None:
        super().__init__()
        self.part = part
        self.first = LpDistance(2, 16, mean_shift=True, identity_init=True)
        self.second = LpDistance(16, 3, bias=True)
        self.linear, self.offset = nn.Linear(16, 16), nn.Parameter(torch.zeros(16))
        self.plain = torch.ones(16)
        self.factor = 0.5
        self.register_buffer("numbers", torch.arange(16))
        self.register_buffer("limit", torch.tensor(1.0))
        self.register_buffer("rows", torch.zeros(3, 16))  # `wrap` runs three samples

    def forward(self, x: Tensor) -> Tensor:
        return -self.second(self.part(self, self.first(x)))


def wrap(part: Callable[[Body, Tensor], Tensor] = lambda body, x: x) -> WrappedNet:
    torch.manual_seed(0)
    return Classifier.wrap(Body(part).eval(), image_shape=(2,), classes=3, mean=(0.5, 0.4), std=0.25)


ACCEPTED = {
    "nothing": lambda body, x: x,
    "relu": lambda body, x: F.relu(x),
    "method": lambda body, x: x.relu().abs().neg().clamp(-3, 3),
    "constants": lambda body, x: 1 - (body.offset + x - 2) * 0.5 / -2,
    "factor": lambda body, x: body.factor * x,
    "branches": lambda body, x: torch.minimum(torch.maximum(x, -x), x.relu()),
    "cat": lambda body, x: torch.cat((x[:, 4:], x[:, :4]), dim=-1),
    "stack": lambda body, x: torch.stack([x, -x], 1).amin((1,)),
    "image": lambda body, x: F.max_pool2d(x.view(x.shape[0], 1, 4, 4), 3, 1, padding=1).flatten(1),
    "min pool": lambda body, x: -F.max_pool2d(-x.unflatten(1, (1, 4, 4)), 3, 1, padding=1).flatten(1),
    "transposed": lambda body, x: x.reshape(-1, 4, 4).transpose(1, 2).permute(0, 2, 1).contiguous().view(-1, 16),
    "padded": lambda body, x: F.pad(x[:, 1:-1], (1, 1)),
    "dropout": lambda body, x: F.dropout(x, training=body.training),
    "last features": lambda body, x: torch.cat((x[..., 4:], x[..., None, :4].squeeze(1)), axis=1),
    "max": lambda body, x: torch.max(x, -x).min(x.relu().max(body.offset)),
    "float": lambda body, x: x.float(),
    "same shape": lambda body, x: x.relu().reshape(x.shape).view((x.size()[0], x.shape[1])),
    "squeezed": lambda body, x: x.unsqueeze(1).squeeze(1),
}


@pytest.mark.parametrize("part", ACCEPTED)
def test_an_own_forward_pass_is_certified_and_attacked(part: str):
    net = wrap(ACCEPTED[part])
    assert (net.certificate_names, net.arithmetic, net.lipschitz) == (("margin", "interval"), "float32", 4.0)
    images = torch.rand(30, 2, generator=torch.Generator().manual_seed(1))
    expected = net.body((images - torch.tensor([0.5, 0.4])) / 0.25)
    assert torch.equal(net(images), expected)
    found = certify_images(net, [(images, None)], [Fraction(1, 1000)], steps=8)
    kept = found.best_radii > 0
    for attack in (best_pgd, square_attack):
        moved = attack(net, images[kept], found.labels[kept], found.best_radii[kept].clamp(max=1))
        assert label_on_top(net(moved), found.labels[kept]).all()
    assert (found.radii["interval"] >= found.radii["margin"].clamp(max=1) - 2**-8 - 1e-5)[kept].all()


REFUSED = {
    "Linear": (lambda body, x: body.linear(x), r"Linear \('linear'\).*not known to be 1-Lipschitz"),
    "sum": (lambda body, x: x + x, "operation 'add'.*sum or difference of two branches is 2-Lipschitz.*torch.maximum"),
    "difference": (lambda body, x: x - torch.relu(x), "two branches is 2-Lipschitz"),
    "scale": (lambda body, x: 2 * x, "operation 'mul'.*number is 2; expected a number from -1 to 1"),
    "zero": (lambda body, x: 0 * x, "number is 0"),
    "small divisor": (lambda body, x: x / 0.5, "operation 'truediv'.*number is 0.5"),
    "reciprocal": (lambda body, x: 1 / x, "divides by features"),
    "tensor scale": (lambda body, x: x * body.offset, "multiplies or divides by a tensor"),
    "product": (lambda body, x: x * x, "multiplies or divides two branches"),
    "tanh": (lambda body, x: torch.tanh(x), "operation 'tanh'"),
    "method": (lambda body, x: x.exp(), "operation 'exp'"),
    "softmax": (lambda body, x: F.softmax(x, 1), "operation 'softmax'"),
    "matmul": (lambda body, x: x @ body.linear.weight, "operation 'matmul'"),
    "in place": (lambda body, x: F.relu(x, inplace=True), "in place"),
    "in-place method": (lambda body, x: x.relu_(), "operation 'relu_'"),
    "dropout": (lambda body, x: F.dropout(x), "dropout is active"),
    "batch maximum": (lambda body, x: x - x.amax(0), "dimension 0, which counts the samples"),
    "maximum of all": (lambda body, x: torch.maximum(x, x.amax()), "works on all dimensions"),
    "batch flatten": (lambda body, x: x.flatten().view(-1, 16), "dimension 0"),
    "batch reshape": (lambda body, x: x.reshape(-1, 8).view(-1, 16), "'reshape'.*result has shape"),
    "batch transpose": (lambda body, x: x.transpose(0, 1), "dimension 0"),
    "batch permute": (lambda body, x: x.permute(1, 0), "moves dimension 0"),
    "batch index": (lambda body, x: x[0:1], "expected an index such as"),
    "batch cat": (lambda body, x: torch.cat([x, x]), "dimension 0"),
    "batch stack": (lambda body, x: torch.stack([x, x]).amax(1), "before the samples"),
    "batch mixing": (lambda body, x: torch.maximum(x, x.unsqueeze(1)).amax(1), "different numbers of dimensions"),
    "batch unsqueeze": (lambda body, x: x.unsqueeze(0), "before the samples"),
    "batch pad": (lambda body, x: F.pad(x, (0, 0, 1, -1)), "'pad'.*pads dimension 0, which counts the samples"),
    "constants of samples": (lambda body, x: x + body.rows, "expected one that all samples share"),
    "random": (lambda body, x: x + torch.rand(x.shape), "operation 'rand'.*computes a constant"),
    "plain tensor": (lambda body, x: x + body.plain, "neither a parameter nor a buffer"),
    "infinite": (lambda body, x: x.clamp(min=-math.inf), "expected a finite number"),
    "alpha": (lambda body, x: torch.add(x, 1, alpha=2), "no options such as alpha"),
    "dtype": (lambda body, x: x.double(), "operation 'double'"),
    "view as int": (lambda body, x: x.view(torch.int32), "changes the dtype"),
    "attribute": (lambda body, x: x.T, "attribute 'T'"),
    "value": (lambda body, x: x if x.sum() > 0 else -x, "torch.fx cannot trace.*expected the same operations"),
    "batch size": (lambda body, x: x if x.shape[0] > 1 else -x, "torch.fx cannot trace"),
    "add with a factor": (lambda body, x: torch.add(body.offset, 5, x), "'add'.*two terms and no options"),
    "method with a factor": (lambda body, x: body.offset.add(5, x), "two terms and no options"),
    "difference with a factor": (lambda body, x: torch.sub(body.offset, 5, x), "'sub'.*two terms and no options"),
    "difference by method": (lambda body, x: body.offset.sub(7, x), "two terms and no options"),
    "divided by the batch": (lambda body, x: x / x.size(0), "'truediv'.*depends on the number of samples"),
    "limited by the batch": (lambda body, x: x.clamp(max=x.shape[0] * 0.1), "'mul'.*depends on the number of samples"),
    "shifted by the batch": (lambda body, x: x + x.size(-2), "'add'.*depends on the number of samples"),
    "sliced by the batch": (lambda body, x: x[:, : x.shape[0]], "depends on the number of samples"),
    "chosen by the batch": (lambda body, x: x + body.offset[x.size(dim=0)], "depends on the number of samples"),
    "batch as a size": (lambda body, x: x.reshape(-1, x.shape[0], 2).amax(2), "depends on the number of samples"),
    "batch twice": (lambda body, x: x.view(x.size(0), x.size(0), -1), "depends on the number of samples"),
    "unflattened by the batch": (lambda body, x: x.unflatten(1, (x.size(0), -1)), "depends on the number of samples"),
    "padded by the batch": (lambda body, x: F.pad(x, (0, x.size()[0])), "depends on the number of samples"),
    "fixed batch": (lambda body, x: x.reshape(3, -1).relu().reshape(x.shape), "first size is 3; expected x.size"),
    "all features": (lambda body, x: x[..., 0:1, :], "expected an index such as"),
    "length": (lambda body, x: x.view(len(x), -1), r"use x.size\(0\)"),
    "maximum with indices": (lambda body, x: x.max(1).values, r"'max'.*use x.amax\(1\)"),
    "integers": (lambda body, x: x + body.numbers, "constant has dtype torch.int64"),
    "value of a buffer": (lambda body, x: x.clamp(max=body.limit.item()), "'item'.*computes a constant"),
    "condition on a buffer": (lambda body, x: x if body.limit > 0 else -x, "torch.fx cannot trace"),
    "random number": (lambda body, x: x + random.random(), "does not always do the same"),
    "wrong size": (lambda body, x: x[:, :5], r"LpDistance \('second'\)|fan-in|in_features|expected"),
}


@pytest.mark.filterwarnings("ignore:This overload of")
@pytest.mark.parametrize("part", REFUSED)
def test_what_cannot_be_proven_is_refused_by_name(part: str):
    function, message = REFUSED[part]
    with pytest.raises(ArgumentError, match=message) as caught:
        wrap(function)
    assert "\n" not in str(caught.value)


def stack(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), LpDistance(16, 2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-2, 2), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1),
        nn.AdaptiveMaxPool2d(4), nn.ZeroPad2d((1, -1, 0, 0)), nn.Dropout(), nn.Dropout2d(), MeanShift(1, dim=1),
        LpDistanceConv2d(1, 1, 3, padding=1, mean_shift=True),
        nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 4, 4))),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_modules_that_are_accepted(layer: nn.Module):
    torch.manual_seed(0)
    net = Classifier.wrap(stack(layer), (1, 4, 4), 2, mean=0.3, std=0.5).eval()
    images = torch.rand(40, 1, 4, 4)
    found = certify_images(net, [(images, None)], steps=8)
    assert torch.equal(net(images), net.body((images - 0.3) / 0.5))
    kept = found.best_radii > 0
    assert kept.sum() > 5
    assert label_on_top(
        net(best_pgd(net, images[kept], found.labels[kept], found.best_radii[kept].clamp(max=1))), found.labels[kept]
    ).all()


class Scaled(LpDistance):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Declared(Nonexpansive):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1).values

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return self(lower), self(upper)


class Sorted(Declared):
    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self(x), []


class Wrong(Declared):
    def measure(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return x, []


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Conv2d(1, 1, 1), r"Conv2d \('0'\)"),
        (nn.BatchNorm2d(1), r"BatchNorm2d \('0'\)"),
        (nn.LeakyReLU(), r"LeakyReLU \('0'\)"),
        (nn.ReLU(inplace=True), "use inplace=False"),
        (nn.MaxPool2d(1, return_indices=True), "return_indices=False"),
        (nn.AvgPool2d(1, divisor_override=1), "divisor_override"),
        (nn.Flatten(0), "dimension 0"),
        (MeanShift(3, dim=0), "dim is 0 for x of shape .*; expected a dimension of features"),
        (nn.Sequential(nn.Flatten(), Scaled(16, 16)), r"Scaled \('0.1'\).*overrides forward"),
        (nn.Sequential(nn.Flatten(), Declared()), r"Declared does not define measure"),
        (nn.Sequential(nn.Flatten(), Wrong()), "measure or bounds do not agree with forward in Wrong"),
        (LinfNet((1, 4, 4), 16), "contains the LinfNet '0', a Classifier"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_modules_that_are_refused(layer: nn.Module, message: str):
    torch.manual_seed(0)
    with pytest.raises(ArgumentError, match=message):
        Classifier.wrap(stack(layer).eval(), (1, 4, 4), 2)


def test_the_window_of_an_average_is_limited():
    """The proof covers sums of up to 1,024 numbers."""
    for size, refused in ((32, False), (33, True)):
        body = nn.Sequential(nn.AvgPool2d(size), nn.Flatten(), LpDistance(1, 2)).eval()
        if refused:
            with pytest.raises(ArgumentError, match="its window has 1089 numbers; expected at most 1024"):
                Classifier.wrap(body, (1, size, size), 2)
        else:
            Classifier.wrap(body, (1, size, size), 2)


def test_a_module_that_declares_itself_1_lipschitz():
    torch.manual_seed(0)
    net = Classifier.wrap(nn.Sequential(LpDistance(2, 8), Sorted(), LpDistance(8, 2)), (2,), 2).eval()
    images = torch.rand(50, 2)
    found = certify_by_margin(net, images)
    assert (found.radii > 0).any()
    kept = found.radii > 0
    moved = best_pgd(net, images[kept], found.labels[kept], found.radii[kept].clamp(max=1))
    assert label_on_top(net(moved), found.labels[kept]).all()


def certify(net: Classifier) -> Tensor:
    return certify_by_margin(net, torch.rand(3, *net.image_shape)).radii


def test_a_replaced_layer_is_analysed_again():
    net, images = wrap(), torch.rand(20, 2)
    before = net(images)
    net.body.second = LpDistance(16, 3)
    assert torch.equal(net(images), net.body((images - torch.tensor([0.5, 0.4])) / 0.25))
    assert not torch.equal(net(images), before)
    certify(net)
    net.body.second = nn.Linear(16, 3)
    for attempt in (
        certify,
        lambda net: certified_by_interval(net, images, torch.zeros(20, dtype=torch.int64), Fraction(1, 9)),
    ):
        with pytest.raises(ArgumentError, match=r"Linear \('second'\)"):
            attempt(net)


def test_another_forward_pass_is_analysed_again():
    net, images = wrap(lambda body, x: body.factor * x), torch.rand(20, 2)
    net.body.factor = 0.25
    assert torch.equal(net(images), net.body((images - torch.tensor([0.5, 0.4])) / 0.25))
    certify(net)
    net.body.factor = 2
    with pytest.raises(ArgumentError, match="the number is 2"):
        certify(net)
    net.body.factor = 0.5
    for module, name in ((net.body, "Body"), (net.body.second, r"LpDistance \('second'\)")):
        certify(net)
        module.forward = lambda x: 2 * x
        with pytest.raises(ArgumentError, match=f"forward of {name} in the body was replaced"):
            certify(net)
        del module.forward


def test_hooks_are_refused():
    net = wrap()
    for part in (net, net.body, net.body.first, net.body.first.shift):
        for register in (part.register_forward_hook, part.register_forward_pre_hook):
            handle = register(lambda *arguments: None)
            with pytest.raises(ArgumentError, match="has a forward hook"):
                certify(net)
            handle.remove()
    certify(net)


def test_training_p_and_means():
    net, images = wrap().train(), torch.rand(64, 2)
    net.p = 8.0
    assert {layer.p for layer in net.distance_layers()} == {8.0}
    net(images).square().mean().backward()
    assert all(layer.weight.grad is not None for layer in net.distance_layers())
    assert net.body.first.shift.running_mean.abs().max() > 0
    radii = certify_by_margin(net, images).radii
    assert net.training
    assert net.p == 8.0
    reestimate_means(net, [images])
    assert net.training
    assert net.p == 8.0
    with net.at_infinity():
        assert not net.training
        expected = net.body.first._distance((images - torch.tensor([0.5, 0.4])) / 0.25).mean(0)
        torch.testing.assert_close(net.body.first.shift.running_mean, expected)
        assert not torch.equal(certify_by_margin(net, images).radii, radii)


def test_means_of_a_bare_module():
    torch.manual_seed(0)
    body, x = nn.Sequential(nn.Dropout(), LpDistance(2, 4, p=8.0, mean_shift=True)), torch.rand(50, 2)
    reestimate_means(body, [x])
    assert body[1].p == 8.0
    assert body[0].training
    torch.testing.assert_close(body[1].shift.running_mean, torch.cdist(x, body[1].weight, p=math.inf).mean(0))


def test_copies_pickles_and_saving(tmp_path):
    net, images = wrap(), torch.rand(20, 2)
    net(images)
    for twin in (
        copy.deepcopy(net),
        pickle.loads(pickle.dumps(Classifier.wrap(nn.Sequential(LpDistance(2, 3)), (2,), 3))),
    ):
        certify(twin)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.body.second.bias.add_(torch.tensor([1.0, 0, 0]))
    assert not torch.equal(twin(images), net(images))
    with pytest.raises(ArgumentError, match=r"torch.save\(net.body.state_dict\(\), path\)"):
        net.save(tmp_path / "model")
    other = wrap()
    other.body.load_state_dict(net.body.state_dict())
    assert torch.equal(other(images), net(images))


def test_wrapping_draws_no_random_numbers_and_accepts_empty_batches():
    body = Body(lambda body, x: x.view(x.size(0), -1)).eval()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    net = Classifier.wrap(body, (2,), 3)
    assert torch.equal(torch.rand(1), expected)
    empty = torch.rand(0, 2)
    assert certify_by_margin(net, empty).radii.shape == (0,)
    assert certified_by_interval(net, empty, torch.zeros(0, dtype=torch.int64), Fraction(1, 9)).shape == (0,)


def test_wrong_arguments():
    body = nn.Sequential(nn.Flatten(), LpDistance(2, 3))
    with pytest.raises(ArgumentError, match=r"body returns shape \(3, 3\) for 3 samples; expected \[B, 4\]"):
        Classifier.wrap(body, (2,), 4)
    with pytest.raises(ArgumentError, match="body is a int"):
        Classifier.wrap(3, (2,), 3)  # pyright: ignore
    for compiled in (torch.compile(body, backend="eager"), nn.Sequential(torch.compile(body, backend="eager"))):
        with pytest.raises(ArgumentError, match="body is compiled"):
            Classifier.wrap(compiled, (2,), 3)
    with pytest.raises(ArgumentError, match="body is a LinfNet, a Classifier"):
        Classifier.wrap(LinfNet((2,), 3), (2,), 3)
    with pytest.raises(ArgumentError, match="mean has 3 numbers; expected one or 2"):
        Classifier.wrap(body, (2,), 3, mean=(1.0, 2.0, 3.0))
    net = Classifier.wrap(body, (2,), 3)
    with pytest.raises(ArgumentError, match=r"images have shape \(5, 3\); the net expects \[B, 2\]"):
        net(torch.rand(5, 3))
    with pytest.raises(ArgumentError, match=r"dtype torch.uint8; expected numbers in \[0, 1\]: images.float\(\) / 255"):
        net(torch.zeros(5, 2, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="images is a ndarray"):
        net(torch.rand(5, 2).numpy())


def test_a_forward_pass_with_two_inputs_is_refused():
    class Two(Body):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.maximum(x, y)

    class Option(Body):
        def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
            return -self.second(scale * self.first(x))

    with pytest.raises(ArgumentError, match="forward of Two has several inputs"):
        Classifier.wrap(Two(), (2,), 2)
    certify(Classifier.wrap(Option().eval(), (2,), 3))


def test_a_classifier_without_a_certificate_says_so():
    class Plain(Classifier):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    with pytest.raises(LinfnetError, match=r"Plain defines neither least_margin nor certified.*Classifier.wrap"):
        certified_by_interval(Plain((2,), 2), torch.rand(3, 2), torch.zeros(3, dtype=torch.int64), Fraction(1, 9))


def test_a_linf_net_of_vectors(tmp_path):
    torch.manual_seed(0)
    net = LinfNet((5,), 3, (8,), mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=0.5).eval()
    images = torch.rand(20, 5)
    found = certify_images(net, [(images, None)], steps=8)
    assert (found.best_radii > 0).any()
    net.save(tmp_path)
    assert torch.equal(LinfNet.load(tmp_path)(images), net(images))
    single = LinfNet((5,), 3, mean=0.5)
    assert single.mean == (0.5,)
    assert single(images).shape == (20, 3)
    with pytest.raises(ArgumentError, match="expected images"):
        single.picture_shape()
