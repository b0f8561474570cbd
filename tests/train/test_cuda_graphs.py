"""CUDA graphs of a training step: results are bitwise the same, and graphs are captured only where they pay off."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from train.recorded import record_graphs

from linfnet.data import load
from linfnet.losses import Hinge, Mixture, Objective
from linfnet.nn import LinfNet
from linfnet.ops.cuda import tensor_core
from linfnet.recipes import load_recipe
from linfnet.schedules import StepState
from linfnet.train import RunFolder, Trainer, cuda_graphs
from linfnet.train.cuda_graphs import CapturedGraphs, GraphedModule
from linfnet.train.optimizer import build_optimizer

BATCH = 64
# Epochs of two full batches and a smaller one, through p = 8, 10, 12 and infinity.
FEW_P = ("snap_p=true", "epochs=[2, 10, 2]", "p_end=12", "limit=150", "batch=64", "depth=3", "weight_decay=0.01")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def small_net(device: str = "cpu", kind: type[LinfNet] = LinfNet) -> LinfNet:
    """A net whose layers are just wide enough to use every GPU kernel."""
    torch.manual_seed(0)
    return kind((1, 16, 16), 10, hidden=(288, 320), mean=0.4, std=0.3, hidden_bias=True).to(device)


def batch(step: int, size: int, device: str = "cpu", side: int = 16) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    pixels, labels = torch.rand(size, 1, side, side, generator=draw), torch.randint(10, (size,), generator=draw)
    return pixels.to(device), labels.to(device)


class Fake:
    """Replaces graphs on a CPU: one p, one batch size, gradients at fixed addresses."""

    made: list["Fake"]

    def __init__(self, module: nn.Module, pixels: Tensor, previous: object) -> None:
        self.module, self.size, self.previous, self.replays = module, len(pixels), previous, 0
        self.backward_graph = object()
        self.parameters = [each for each in module.parameters() if each.requires_grad]
        self.fixed = [torch.full_like(each, math.nan) for each in self.parameters]
        self.made.append(self)

    def forward(self, pixels: Tensor) -> Tensor:
        assert len(pixels) == self.size
        self.replays += 1
        with torch.enable_grad():
            self.output = self.module(pixels)
        return self.output.detach()

    def backward(self, gradient: Tensor) -> None:
        gradients = torch.autograd.grad(self.output, self.parameters, gradient, allow_unused=True)
        for parameter, fixed, grad in zip(self.parameters, self.fixed, gradients, strict=True):
            if grad is not None:
                assert parameter.grad is None
                parameter.grad = fixed.copy_(grad)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    Fake.made = []
    monkeypatch.setattr(cuda_graphs, "CapturedGraphs", Fake)
    return Fake.made


def graphed(net: LinfNet, size: int = BATCH, stays: Callable[[], bool] = lambda: True) -> GraphedModule:
    return GraphedModule(net, size, lambda: net.p, stays)


def state(loss: Objective) -> StepState:
    return StepState(epoch=1.0, started=1.0, relaxed=0.5, p=8.0, mixing=loss.mixing(0.5), lr=0.01)


@pytest.mark.parametrize("loss", [Mixture(theta=Fraction(1, 5)), Hinge()], ids=["mixture", "hinge"])
@pytest.mark.parametrize("p", [8.0, math.inf])
def test_a_replay_gives_the_bits_of_one_backward_pass(loss: Objective, p: float, fakes: list[Fake]) -> None:
    nets = [small_net(), small_net()]
    pixels, labels = batch(0, 12)
    for net in nets:
        net.p = p
        net.scale.requires_grad_(loss.learns_scale)
    replayed = graphed(nets[1], len(pixels))
    losses: list[Tensor] = []
    for net, forward in zip(nets, (nets[0], replayed), strict=True):
        for _ in range(3):  # eager, captured, replayed
            net.zero_grad()
            losses.append(loss(forward(pixels), labels, state(loss), scale=net.scale, lipschitz=net.lipschitz))
            losses[-1].backward()
    assert [each.replays for each in fakes] == [2]
    assert torch.equal(torch.stack(losses[:3]), torch.stack(losses[3:]))
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad is nets[0].scale.grad
        else:
            assert torch.equal(one.grad, other.grad)
    assert all(torch.equal(one, other) for one, other in zip(nets[0].buffers(), nets[1].buffers(), strict=True))
    # Gradients are assigned, not copied: each has its address from the capture.
    addresses = {grad.data_ptr() for grad in fakes[0].fixed}
    assert all(each.grad.data_ptr() in addresses for each in nets[1].layers.parameters())


def test_a_replay_uses_the_weights_of_its_step_and_adds_to_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    record_graphs(monkeypatch)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(256, 7), nn.Tanh(), nn.Linear(7, 10))
    graphs = CapturedGraphs(module, batch(0, 8)[0], None)
    parameters = list(module.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.1)  # as an optimizer does
    # The objective itself uses the last bias, so that it already has a gradient.
    parameters[-1].grad = torch.ones(10)
    pixels, gradient = batch(1, 8)[0], torch.randn(8, 10)
    output = module(pixels)
    expected = torch.autograd.grad(output, parameters, gradient)
    torch.testing.assert_close(graphs.forward(pixels), output.detach())
    graphs.backward(gradient)
    for parameter, grad in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad + 1 if parameter is parameters[-1] else grad)


def kinds(steps: list[tuple[float, int, bool]], made: list[Fake]) -> str:
    """Return how each step ran, given its p, its batch size and whether p stays: e(ager), c(aptured) or r(eplayed)."""
    net, stays = LinfNet((1, 16, 16), 10), [True]
    module, found = graphed(net, 8, lambda: stays[0]), ""
    for p, size, stays[0] in steps:
        before = len(made), sum(each.replays for each in made)
        net.p = p
        net.zero_grad()
        module(batch(0, size)[0]).sum().backward()
        after = len(made), sum(each.replays for each in made)
        found += "e" if after[1] == before[1] else "r" if after[0] == before[0] else "c"
    return found


def test_the_second_step_of_a_lasting_p_is_captured(fakes: list[Fake]) -> None:
    steps = [
        *((8.0, 8, True), (8.0, 8, True), (8.0, 8, True)),
        *((8.0, 5, True), (8.0, 8, False)),  # the graph survives a smaller last batch
        *(
            (9.0, 5, True),
            (9.0, 8, True),
            (9.0, 8, False),
            (9.0, 8, False),
        ),  # p will change soon, so nothing is captured
        *((math.inf, 8, True), (math.inf, 8, True), (math.inf, 8, True)),
        *((8.0, 8, True), (8.0, 8, True)),  # the earlier graph of this p no longer exists
    ]
    assert kinds(steps, fakes) == "ecrereeeeecrec"
    assert [each.previous for each in fakes] == [None, fakes[0].backward_graph, fakes[1].backward_graph]


def test_a_failed_capture_is_reported_once_and_training_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no capture today\nmore of it")

    monkeypatch.setattr(cuda_graphs, "CapturedGraphs", fail)
    with pytest.warns(UserWarning, match="without CUDA graphs because the capture failed: no capture today$") as warned:
        assert kinds([(8.0, 8, True)] * 3 + [(9.0, 8, True)] * 2, []) == "eeeee"
    assert len(warned) == 1


SLOPES = ("slopes_p=8", "slopes_p_end=10")


# Slopes change from 8 to 10 half-way through p = 10, where the graph must be captured again.
@pytest.mark.parametrize(
    ("changes", "replays"),
    [
        ((), [9, 9, 3, 3]),
        (("system.name=hybrid",), [9, 9, 3, 3]),
        (("system.name=conv-stem",), [9, 9, 3, 3]),
        (SLOPES, [9, 4, 4, 3, 3]),
    ],
    ids=["linf", "hybrid", "conv-stem", "slopes"],
)
def test_the_trainer_gives_the_same_bits_with_graphs(
    new_trainer: Callable[..., Trainer], fakes: list[Fake], changes: tuple[str, ...], replays: list[int]
) -> None:
    settings = (*FEW_P, *changes)
    plain, replayed = new_trainer("plain", *settings), new_trainer("replayed", *settings)
    replayed.objective.use_graphs(replayed.batches.size, replayed._later)
    assert replayed.objective.graphed_features is not None
    plain.run()
    assert fakes == []  # on a CPU the recipe's graphs = true has no effect
    assert plain.objective.graphed_features is None
    replayed.run()
    # These are all full batches except the first of each p.
    assert [each.replays for each in fakes] == replays
    for one, other in zip(plain.net.state_dict().values(), replayed.net.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert plain.folder.events()[-2]["clean"] == replayed.folder.events()[-2]["clean"]


def trained(
    device: str, steps: list[float], captures: bool, net: LinfNet | None = None, size: int = BATCH
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the state of a net and its losses after steps at the given p; every fourth batch is smaller."""
    net = net or small_net(device)
    recipe = load_recipe("digits")
    optimizer, forward = build_optimizer(recipe, net), graphed(net, size) if captures else net
    losses: list[Tensor] = []
    for step, p in enumerate(steps):
        pixels, labels = batch(step, 40 if step % 4 == 3 else size, device, net.image_shape[1])
        net.p = p
        logits = forward(pixels)
        loss = recipe.loss(logits, labels, state(recipe.loss), scale=net.scale, lipschitz=net.lipschitz)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return net.state_dict(), torch.stack(losses)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[CapturedGraphs]:
    """The graphs captured in a test."""
    made: list[CapturedGraphs] = []

    class Recorded(CapturedGraphs):
        def __init__(self, module: nn.Module, pixels: Tensor, previous: torch.cuda.CUDAGraph | None) -> None:
            super().__init__(module, pixels, previous)
            made.append(self)

    monkeypatch.setattr(cuda_graphs, "CapturedGraphs", Recorded)
    return made


class Stubborn(LinfNet):
    """Raises an error while it is captured."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        if torch.cuda.is_current_stream_capturing():
            self.refuse(logits)
        return logits

    def refuse(self, logits: Tensor) -> None:
        raise RuntimeError("no capture of this net")


class Waiting(Stubborn):
    """Synchronises the device, which invalidates a capture."""

    def refuse(self, logits: Tensor) -> None:
        logits.sum().item()


def check_refusal(kind: type[Stubborn], message: str) -> None:
    """Training continues with the same results as without graphs, and the allocator still works."""
    steps = [64.0] * 6 + [100.0] * 3
    with pytest.warns(UserWarning, match=message) as warned:
        weights, losses = trained("cuda", steps, captures=True, net=small_net("cuda", kind))
    assert len([warning for warning in warned if "without CUDA graphs" in str(warning.message)]) == 1
    expected, same_losses = trained("cuda", steps, captures=False)
    assert torch.equal(losses, same_losses)
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []
    torch.cuda.empty_cache()


class TestOnTheGpu:
    """Warnings are errors here: a failed capture fails the test."""

    pytestmark = gpu

    @pytest.mark.parametrize("p", [(8.0, 64.0), (22.0, 30.5), (100.0, math.inf), (200.0, 512.0)], ids=str)
    def test_a_graph_gives_the_same_bits(self, p: tuple[float, float], captures: list[CapturedGraphs]) -> None:
        steps = [p[0]] * 6 + [p[1]] * 6
        weights, losses = trained("cuda", steps, captures=False)
        assert captures == []
        again, same_losses = trained("cuda", steps, captures=True)
        assert len(captures) == 2
        assert losses.isfinite().all()
        assert losses.unique().numel() == len(steps)
        assert torch.equal(losses, same_losses)
        assert [name for name in weights if not torch.equal(weights[name], again[name])] == []

    def test_a_graph_of_matrix_products_gives_the_same_bits(self, captures: list[CapturedGraphs]) -> None:
        torch.use_deterministic_algorithms(False)  # cuBLAS would need an environment variable

        def wide() -> LinfNet:
            torch.manual_seed(0)
            return LinfNet((1, 32, 32), 10, hidden=(1024, 1024), mean=0.4, std=0.3).to("cuda")

        rows, weights = torch.empty(512, 1024, device="cuda"), torch.empty(1024, 1024, device="cuda")
        assert tensor_core.supports(rows, weights, 8.0)
        weights, losses = trained("cuda", [8.0] * 6, captures=False, net=wide(), size=512)
        again, same_losses = trained("cuda", [8.0] * 6, captures=True, net=wide(), size=512)
        assert len(captures) == 1
        assert torch.equal(losses, same_losses)
        assert [name for name in weights if not torch.equal(weights[name], again[name])] == []

    def test_a_capture_that_fails_is_reported_once(self) -> None:
        check_refusal(Stubborn, "no capture of this net")

    def test_an_invalidated_capture_is_reported_once(self) -> None:
        # This runs in a separate process, because an invalidated capture would affect the other tests.
        code = "import test_cuda_graphs as t; t.check_refusal(t.Waiting, 'without CUDA graphs')"
        paths = (Path(cuda_graphs.__file__).parents[2], *Path(__file__).parents[:2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_memory_does_not_grow_with_the_number_of_p(self, captures: list[CapturedGraphs]) -> None:
        reserved: list[int] = []  # after the first eager step, and after each p
        net, recipe = small_net("cuda"), load_recipe("digits")
        optimizer, forward = build_optimizer(recipe, net), graphed(net)
        pixels, labels = batch(0, BATCH, "cuda")
        for p in range(130, 170, 2):  # all steps use the same kernels
            net.p = float(p)
            for _ in range(3):
                logits = forward(pixels)
                loss = recipe.loss(logits, labels, state(recipe.loss), scale=net.scale, lipschitz=net.lipschitz)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                reserved = reserved or [torch.cuda.memory_reserved()]
            assert len(captures) == 1
            captures.clear()  # a recorded graph would keep its memory
            reserved.append(torch.cuda.memory_reserved())
        of_one = reserved[1] - reserved[0]
        assert reserved[-1] - reserved[1] < of_one

    @pytest.mark.parametrize("system", ["linf", "hybrid", "conv-stem"])
    def test_the_trainer_gives_the_same_bits(self, tmp_path: Path, captures: list[CapturedGraphs], system: str) -> None:
        def run(name: str, *changes: str) -> dict[str, Tensor]:
            recipe = load_recipe("digits", (*FEW_P, "width=64", f"system.name={system}", *changes))
            folder = RunFolder.new(tmp_path / name, recipe)
            images, test = load("digits", "train"), load("digits", "test")
            trainer = Trainer(recipe, images, test, torch.device("cuda"), folder=folder)
            folder.create()
            trainer.run()
            folder.release()
            return trainer.net.state_dict()

        without = run("without", "graphs=false")
        assert captures == []
        replayed = run("replayed")
        assert len(captures) > 1
        assert [name for name in without if not torch.equal(without[name], replayed[name])] == []
