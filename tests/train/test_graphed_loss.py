"""CUDA graphs of a whole loss, for systems with bounds of conventional nets."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from train.recorded import record_graphs

from linfnet.data import load
from linfnet.recipes import Recipe, load_recipe
from linfnet.systems import LossModule, WeightedSystem, system_of
from linfnet.train import Trainer, cuda_graphs, step_state
from linfnet.train.cuda_graphs import CapturedLoss, GraphedLoss

SYSTEMS = {
    "ibp": (),
    "ibp-2018": ("system.batch_norm=false", "system.kappa_start=1.0", "system.kappa_end=0.5"),
    "crown-ibp": ("system.name=crown-ibp",),
    "crown-ibp-margins": ("system.name=crown-ibp", "system.fusion=false", "system.beta_end=0.5"),
}
# 8 steps per epoch: full batches of 64 and one of 52.
SETTINGS = ("data.name=digits", "data.limit=500", "optimizer.batch=64", "schedule.epochs=[1, 2, 1]")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
every_system = pytest.mark.parametrize("name", list(SYSTEMS))


def recipe_of(name: str) -> Recipe:
    return load_recipe("mnist-0.3-ibp-2021", [*SETTINGS, "system.architecture=small", *SYSTEMS[name]])


def module_of(name: str, device: str = "cpu") -> tuple[Recipe, WeightedSystem, LossModule]:
    recipe, info = recipe_of(name), load("digits", "test").info
    system = system_of(recipe)
    assert isinstance(system, WeightedSystem)
    torch.manual_seed(0)
    return recipe, system, LossModule(system, system.build(recipe, info).to(device))


@every_system
def test_numbers_of_a_step_may_be_tensors(name: str):
    recipe, system, module = module_of(name)
    images = load("digits", "test").first(20)
    for step in (0, 8, 9, 15, 20, 24, 31):
        weights = system.weights(step_state(recipe, step, 8))
        tensors = {key: torch.tensor(value) if value else 0.0 for key, value in weights.items()}
        found: list[list[Tensor]] = []
        for given in (weights, tensors):
            module.zero_grad()
            loss, logits = module(images.pixels(), images.labels, given)
            loss.backward()
            found.append([loss, logits, *(each.grad for each in module.parameters() if each.grad is not None)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)


class Fake:
    """Replaces graphs on a CPU: one batch size and one set of weights that are not 0."""

    made: list["Fake"]

    def __init__(self, module: nn.Module, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> None:
        self.module, self.size, self.replays = module, len(pixels), 0
        self.used = [weight != 0 for weight in weights.values()]
        self.made.append(self)

    def __call__(self, pixels: Tensor, labels: Tensor, weights: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        assert len(pixels) == self.size
        assert self.used == [weight != 0 for weight in weights.values()]
        self.replays += 1
        loss, logits = self.module(pixels, labels, weights)
        loss.backward()
        return loss, logits


def test_graphs_are_captured_again_when_other_terms_are_used(
    new_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
):
    Fake.made = []
    monkeypatch.setattr(cuda_graphs, "CapturedLoss", Fake)
    settings = (*SETTINGS, "system.name=ibp", "system.architecture=small")
    plain, replayed = new_trainer("plain", *settings), new_trainer("replayed", *settings)
    replayed.objective.use_graphs(replayed.batches.size, replayed._later)
    assert replayed.objective.graphed_loss is not None
    plain.run()
    assert plain.objective.graphed_loss is None
    replayed.run()
    # Full batches except the first with the same terms: phases 1, 2 and 3 have different ones.
    assert [each.replays for each in Fake.made] == [7, 12, 6]
    for one, other in zip(plain.net.state_dict().values(), replayed.net.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["ibp-2018", "crown-ibp-margins"])
def test_a_replay_uses_the_batch_and_the_weights_of_its_step(name: str, monkeypatch: pytest.MonkeyPatch):
    record_graphs(monkeypatch)
    recipe, system, module = module_of(name)
    images, (first, second) = load("digits", "test"), [system.weights(step_state(recipe, step, 8)) for step in (12, 20)]
    module.eval()  # a recording runs the operations, unlike a capture, so batch norm must not update its means
    captured = CapturedLoss(module, images.first(20).pixels(), images.first(20).labels, first)
    pixels, labels = images.pixels()[20:40], images.labels[20:40]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)  # as an optimizer does
    found = captured(pixels, labels, second)
    gradients = [None if each.grad is None else each.grad.clone() for each in module.parameters()]
    module.zero_grad()
    expected = module(pixels, labels, second)
    expected[0].backward()
    torch.testing.assert_close(found, tuple(each.detach() for each in expected))
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_failed_capture_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no capture today\nand a second line")

    monkeypatch.setattr(cuda_graphs, "CapturedLoss", fail)
    recipe, system, module = module_of("ibp")
    graphed, images = GraphedLoss(module, 20), load("digits", "test").first(20)
    weights = system.weights(step_state(recipe, 20, 8))
    graphed(images.pixels(), images.labels, weights)
    with pytest.warns(UserWarning, match="without CUDA graphs because the capture failed: no capture today$") as warned:
        losses = [graphed(images.pixels(), images.labels, weights)[0].item() for _ in range(3)]
    assert len(warned) == 1
    assert len(losses) == 3


class TestOnGpu:
    pytestmark = gpu

    @every_system
    def test_replayed_steps_are_those_of_eager_steps(self, name: str, monkeypatch: pytest.MonkeyPatch):
        made: list[CapturedLoss] = []

        class Recorded(CapturedLoss):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments)  # pyright: ignore[reportArgumentType]
                made.append(self)

        monkeypatch.setattr(cuda_graphs, "CapturedLoss", Recorded)
        # A capture may choose other algorithms for convolutions, whose TensorFloat-32 sums differ by 1e-3.
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        recipe, system, eager = module_of(name, "cuda")
        _, _, replayed = module_of(name, "cuda")
        graphed, images = GraphedLoss(replayed, 64), load("digits", "train").first(64).to(torch.device("cuda"))
        for step in range(8, 32):
            weights = system.weights(step_state(recipe, step, 8))
            for module in (eager, replayed):
                module.zero_grad()
            expected = eager(images.pixels(), images.labels, weights)[0]
            expected.backward()
            loss, _ = graphed(images.pixels(), images.labels, weights)
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
            largest = max(each.grad.abs().max().item() for each in eager.parameters() if each.grad is not None)
            for one, other in zip(replayed.parameters(), eager.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None)
                if one.grad is not None and other.grad is not None:
                    assert one.grad.stride() == one.stride()  # as the fused Adam requires
                    torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4 * largest)
        assert len(made) == 2
