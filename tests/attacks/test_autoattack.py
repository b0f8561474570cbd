"""AutoAttack, if the extra is installed."""

import importlib.util
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from linfnet.attacks import attack_all, suite
from linfnet.attacks.suite import auto_attack
from linfnet.errors import ArgumentError, LinfnetError
from linfnet.nn import LinfNet, reestimate_means
from linfnet.nn.label_margin import margin

TENTH = Fraction(1, 10)
PRESENT = importlib.util.find_spec("art") is not None


def case() -> tuple[LinfNet, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = LinfNet((1, 8, 8), 3, (10,), mean=0.3, std=0.4)
    reestimate_means(net, [torch.rand(50, 1, 8, 8)])
    images = torch.rand(30, 1, 8, 8)
    return net.eval(), images, net.eval()(images).argmax(1)


@pytest.mark.skipif(not PRESENT, reason="needs the extra `autoattack`")
@pytest.mark.filterwarnings("ignore")  # of the toolbox
def test_it_breaks_samples_inside_the_exact_ball():
    net, images, labels = case()
    found = []

    def attack(net: LinfNet, x: torch.Tensor, y: torch.Tensor, eps: Fraction, generator: torch.Generator):
        found.append(auto_attack(net, x, y, eps, generator, steps=5, restarts=1, queries=20))
        return found[-1]

    (result,) = attack_all(net, images, labels, [TENTH], {"autoattack": attack})
    assert (result.clean & ~result.survived).sum() > 0
    assert (margin(net(result.images), labels)[~result.survived] <= 0).all()
    for before, after in zip(images.flatten().tolist(), found[0].flatten().tolist(), strict=True):
        assert abs(Fraction(after) - Fraction(before)) <= TENTH


def test_a_net_in_training_mode_is_attacked_at_infinity_and_left_unchanged(monkeypatch: pytest.MonkeyPatch):
    net, images, labels = case()
    expected, logits = net(images), list[torch.Tensor]()

    class Fake:
        """Replaces every class of the toolbox; as an attack it only runs the net that it was given."""

        def __init__(self, first: object, *arguments: object, **options: object) -> None:
            self.net = first.net if isinstance(first, Fake) else first

        def generate(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
            logits.append(self.net(torch.from_numpy(x)))
            return x

    names = ("PyTorchClassifier", "AutoProjectedGradientDescent", "DeepFool", "SquareAttack", "AutoAttack")
    toolbox = SimpleNamespace(**dict.fromkeys(names, Fake))
    monkeypatch.setattr(suite, "require", lambda module, extra: toolbox)
    net.train()
    net.p = 8.0
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    auto_attack(net, images, labels, TENTH, torch.Generator())
    assert torch.equal(logits[0], expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.p == 8.0
    assert net.training


@pytest.mark.skipif(PRESENT, reason="the extra `autoattack` is installed")
def test_without_the_extra_it_says_what_to_install():
    net, images, labels = case()
    with pytest.raises(LinfnetError, match=r"pip install 'linfnet\[autoattack\]'"):
        auto_attack(net, images, labels, TENTH, torch.Generator())


@pytest.mark.skipif(not PRESENT, reason="needs the extra `autoattack`")
@pytest.mark.filterwarnings("ignore")  # of the toolbox
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 3, 3), (1, 2, 2), (1, 5, 8)])
def test_small_and_long_images_are_attacked(shape: tuple[int, ...]):
    net = LinfNet(shape, 3, (8,)).eval()
    images = torch.rand(4, *shape)
    found = auto_attack(net, images, net(images).argmax(1), TENTH, torch.Generator(), steps=2, restarts=1, queries=5)
    assert ((found - images).abs() < 0.1001).all()


@pytest.mark.parametrize("shape", [(1, 1, 8), (6,)])
def test_images_of_one_row_are_refused(shape: tuple[int, ...]):
    net = LinfNet(shape, 3, (8,)).eval()
    with pytest.raises(ArgumentError, match=r"images have 1 x \d pixels; expected at least 2 x 2 for AutoAttack"):
        auto_attack(net, torch.rand(2, *shape), torch.tensor([0, 1]), TENTH, torch.Generator())
