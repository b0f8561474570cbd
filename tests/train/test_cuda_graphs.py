"""The passes of a step: the same bits from a graph as without, and a graph only where it pays."""

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

from linfnet.data import load
from linfnet.losses import Hinge, Mixture, Moment, Objective
from linfnet.nn import LinfNet
from linfnet.ops.cuda import tensor_core
from linfnet.recipes import load_recipe
from linfnet.systems import Seen, SeenSystem
from linfnet.train import RunFolder, Trainer
from linfnet.train import cuda_graphs as graphs
from linfnet.train.cuda_graphs import Captured, Eager, Passes
from linfnet.train.steps import build_optimizer

BATCH = 64
# Runs in epochs of two whole batches and an odd one, through p = 8, 10, 12 and infinity.
FEW_P = ("snap_p=true", "epochs=[2, 10, 2]", "p_end=12", "limit=150", "batch=64", "depth=3", "weight_decay=0.01")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def small_net(device: str = "cpu", kind: type[LinfNet] = LinfNet) -> LinfNet:
    """Layers just wide enough for every kernel of the GPU."""
    torch.manual_seed(0)
    return kind((1, 16, 16), 10, hidden=(288, 320), mean=0.4, std=0.3, hidden_bias=True).to(device)


def batch(step: int, size: int, device: str = "cpu", side: int = 16) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    pixels, labels = torch.rand(size, 1, side, side, generator=draw), torch.randint(10, (size,), generator=draw)
    return pixels.to(device), labels.to(device)


class Fake(Eager):
    """Stands for a graph on the CPU: one p, one size of batches, gradients at fixed places."""

    made: list["Fake"]

    def __init__(self, net: nn.Module, pixels: Tensor, before: object) -> None:
        super().__init__(net)
        self.net, self.size, self.before, self.replays = net, len(pixels), before, 0
        self.graph = object()
        self.fixed = [torch.full_like(each, math.nan) for each in net.parameters()]
        self.made.append(self)

    def forward(self, pixels: Tensor) -> Tensor:
        assert len(pixels) == self.size
        self.replays += 1
        return super().forward(pixels)

    def backward(self, gradient: Tensor) -> None:
        super().backward(gradient)
        for parameter, place in zip(self.net.parameters(), self.fixed, strict=True):
            if parameter.grad is not None and parameter.dim():
                parameter.grad = place.copy_(parameter.grad)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    Fake.made = []
    monkeypatch.setattr(graphs, "Captured", Fake)
    return Fake.made


@pytest.mark.parametrize("loss", [Mixture(theta=Fraction(1, 5)), Hinge()], ids=["mixture", "hinge"])
@pytest.mark.parametrize("p", [8.0, math.inf])
def test_two_passes_give_the_bits_of_one_backward(loss: Objective, p: float) -> None:
    nets = [small_net(), small_net()]
    pixels, labels = batch(0, 12)
    for net in nets:
        net.p = p
        net.scale.requires_grad_(loss.learns_scale)
    whole = loss(nets[0](pixels), labels, Moment(1.0, 0.5, nets[0].scale, nets[0].lipschitz))
    whole.backward()
    passes = Passes(nets[1], BATCH, graphs=False)
    logits = passes.forward(pixels, p, lambda: True)
    split = loss(logits, labels, Moment(1.0, 0.5, nets[1].scale, nets[1].lipschitz))
    split.backward()
    assert all(each.grad is None for each in nets[1].layers.parameters())
    passes.backward(logits)
    assert torch.equal(split, whole)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad is net.scale.grad
        else:
            assert torch.equal(one.grad, other.grad)
    assert all(torch.equal(one, other) for one, other in zip(nets[0].buffers(), nets[1].buffers(), strict=True))


def ways(passes: Passes, steps: list[tuple[float, int, bool]], made: list[Fake]) -> list[str]:
    """How each step ran, given its p, the size of its batch and whether p lasts: e(ager), c(aptured) or r(eplayed)."""
    found: list[str] = []
    for p, size, lasts in steps:
        before = len(made), sum(each.replays for each in made)
        logits = passes.forward(batch(0, size)[0], p, lambda lasts=lasts: lasts)
        logits.sum().backward()
        passes.backward(logits)
        after = len(made), sum(each.replays for each in made)
        found.append("e" if after[1] == before[1] else "r" if after[0] == before[0] else "c")
    return found


def test_the_second_step_of_a_lasting_p_is_captured(fakes: list[Fake]) -> None:
    passes = Passes(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), 8, graphs=True)
    steps = [
        *((8.0, 8, True), (8.0, 8, True), (8.0, 8, True)),
        *((8.0, 5, True), (8.0, 8, False)),  # an odd last batch does not cost the graph
        *((9.0, 5, True), (9.0, 8, True), (9.0, 8, False), (9.0, 8, False)),  # p soon changes: no capture
        *((math.inf, 8, True), (math.inf, 8, True), (math.inf, 8, True)),
        *((8.0, 8, True), (8.0, 8, True)),  # what is gone is captured anew
    ]
    assert "".join(ways(passes, steps, fakes)) == "ecrereeeeecrec"
    assert [each.before for each in fakes] == [None, fakes[0].graph, fakes[1].graph]


def test_without_graphs_nothing_is_captured(fakes: list[Fake]) -> None:
    passes = Passes(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), 8, graphs=False)
    assert "".join(ways(passes, [(8.0, 8, True)] * 4, fakes)) == "eeee"


def test_a_failing_capture_is_told_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no capture today\nmore of it")

    monkeypatch.setattr(graphs, "Captured", fail)
    passes = Passes(nn.Sequential(nn.Flatten(), nn.Linear(256, 10)), 8, graphs=True)
    assert ways(passes, [(8.0, 8, True)], []) == ["e"]
    with pytest.warns(UserWarning, match="no CUDA graph of the training step; it goes on without: no capture today$"):
        assert ways(passes, [(8.0, 8, True)], []) == ["e"]
    assert ways(passes, [(8.0, 8, True), (9.0, 8, True), (9.0, 8, True)], []) == ["e"] * 3


@pytest.mark.parametrize("system", ["linf", "hybrid"])
def test_the_trainer_gives_the_same_bits_with_graphs(
    new_trainer: Callable[..., Trainer], watcher, fakes: list[Fake], system: str
) -> None:
    settings = (*FEW_P, f"system.name={system}")
    plain, replayed = new_trainer("plain", *settings), new_trainer("replayed", *settings)
    assert isinstance(replayed.system, SeenSystem)
    assert replayed.system.replayable
    replayed.passes = Passes(Seen(replayed.system, replayed.net), replayed.batch, graphs=True)
    plain.run(watcher)
    assert fakes == []  # on a CPU the recipe's graphs = true means nothing
    replayed.run(watcher)
    # Every whole batch but the first of each p.
    assert [each.replays for each in fakes] == [9, 9, 3, 3]
    for one, other in zip(plain.net.state_dict().values(), replayed.net.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert plain.folder.events()[-2]["clean"] == replayed.folder.events()[-2]["clean"]


def trained(
    device: str, steps: list[float], captures: bool, net: LinfNet | None = None, size: int = BATCH
) -> tuple[dict[str, Tensor], Tensor]:
    """The state of a net and its losses after steps at the given p; every fourth batch is an odd one."""
    net = net or small_net(device)
    recipe = load_recipe("digits")
    optimizer, passes = build_optimizer(recipe, net), Passes(net, size, graphs=captures)
    losses: list[Tensor] = []
    for step, p in enumerate(steps):
        pixels, labels = batch(step, 40 if step % 4 == 3 else size, device, net.image_shape[1])
        net.p = p
        logits = passes.forward(pixels, p, lambda: True)
        loss = recipe.loss(logits, labels, Moment(1.0, 0.5, net.scale, net.lipschitz))
        optimizer.zero_grad()
        loss.backward()
        passes.backward(logits)
        optimizer.step()
        losses.append(loss.detach())
    return net.state_dict(), torch.stack(losses)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """The graphs made in a test."""
    made: list[Captured] = []

    class Noted(Captured):
        def __init__(self, net: nn.Module, pixels: Tensor, before: torch.cuda.CUDAGraph | None) -> None:
            super().__init__(net, pixels, before)
            made.append(self)

    monkeypatch.setattr(graphs, "Captured", Noted)
    return made


class Stubborn(LinfNet):
    """Does not let itself be captured: it says so."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        if torch.cuda.is_current_stream_capturing():
            self.refuse(logits)
        return logits

    def refuse(self, logits: Tensor) -> None:
        raise RuntimeError("not while somebody looks")


class Waiting(Stubborn):
    """It waits for the device, which spoils a capture."""

    def refuse(self, logits: Tensor) -> None:
        logits.sum().item()


def check_refusal(kind: type[Stubborn], message: str) -> None:
    """Training goes on, with the bits it would have without graphs, and with a sound allocator."""
    steps = [64.0] * 6 + [100.0] * 3
    with pytest.warns(UserWarning, match=message) as told:
        state, losses = trained("cuda", steps, captures=True, net=small_net("cuda", kind))
    assert len([warning for warning in told if "no CUDA graph" in str(warning.message)]) == 1
    wanted, same_losses = trained("cuda", steps, captures=False)
    assert torch.equal(losses, same_losses)
    assert [name for name in wanted if not torch.equal(state[name], wanted[name])] == []
    torch.cuda.empty_cache()


class TestOnTheGpu:
    """Warnings are errors here: a capture that fails shows."""

    pytestmark = gpu

    @pytest.mark.parametrize("p", [(8.0, 64.0), (22.0, 30.5), (100.0, math.inf), (200.0, 512.0)], ids=str)
    def test_a_graph_gives_the_same_bits(self, p: tuple[float, float], captures: list[Captured]) -> None:
        steps = [p[0]] * 6 + [p[1]] * 6
        state, losses = trained("cuda", steps, captures=False)
        assert captures == []
        again, same_losses = trained("cuda", steps, captures=True)
        assert len(captures) == 2
        assert losses.isfinite().all()
        assert losses.unique().numel() == len(steps)
        assert torch.equal(losses, same_losses)
        assert [name for name in state if not torch.equal(state[name], again[name])] == []

    def test_a_graph_of_matrix_products_gives_the_same_bits(self, captures: list[Captured]) -> None:
        torch.use_deterministic_algorithms(False)  # they would want an environment variable for cuBLAS

        def wide() -> LinfNet:
            torch.manual_seed(0)
            return LinfNet((1, 32, 32), 10, hidden=(1024, 1024), mean=0.4, std=0.3).to("cuda")

        rows, weights = torch.empty(512, 1024, device="cuda"), torch.empty(1024, 1024, device="cuda")
        assert tensor_core.supports(rows, weights, 8.0)
        state, losses = trained("cuda", [8.0] * 6, captures=False, net=wide(), size=512)
        again, same_losses = trained("cuda", [8.0] * 6, captures=True, net=wide(), size=512)
        assert len(captures) == 1
        assert torch.equal(losses, same_losses)
        assert [name for name in state if not torch.equal(state[name], again[name])] == []

    def test_a_capture_that_fails_is_told_once(self) -> None:
        check_refusal(Stubborn, "not while somebody looks")

    def test_a_capture_that_is_spoiled_is_told_once(self) -> None:
        # In a process of its own: what a spoiled capture leaves behind would meet the other tests.
        code = "import test_graphs as t; t.check_refusal(t.Waiting, 'no CUDA graph of the training step')"
        places = (Path(graphs.__file__).parents[2], Path(__file__).parent)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_memory_does_not_grow_with_the_number_of_p(self, captures: list[Captured]) -> None:
        held: list[int] = []  # after the first step as written, and after each p
        net, recipe = small_net("cuda"), load_recipe("digits")
        optimizer, passes = build_optimizer(recipe, net), Passes(net, BATCH, graphs=True)
        pixels, labels = batch(0, BATCH, "cuda")
        for p in range(130, 170, 2):  # all by the same kernels
            net.p = float(p)
            for _ in range(3):
                logits = passes.forward(pixels, net.p, lambda: True)
                loss = recipe.loss(logits, labels, Moment(1.0, 0.5, net.scale, net.lipschitz))
                optimizer.zero_grad()
                loss.backward()
                passes.backward(logits)
                optimizer.step()
                held = held or [torch.cuda.memory_reserved()]
            assert len(captures) == 1
            captures.clear()  # a graph that is noted would keep its memory
            held.append(torch.cuda.memory_reserved())
        of_one = held[1] - held[0]
        assert held[-1] - held[1] < of_one

    @pytest.mark.parametrize("system", ["linf", "hybrid"])
    def test_the_trainer_gives_the_same_bits(
        self, tmp_path: Path, watcher, captures: list[Captured], system: str
    ) -> None:
        def run(name: str, *changes: str) -> dict[str, Tensor]:
            settings = (*FEW_P, "width=64", f"system.name={system}", *changes)
            folder = RunFolder.new(tmp_path / name, load_recipe("digits", settings))
            trainer = Trainer(folder, load("digits", "train"), load("digits", "test"), torch.device("cuda"))
            folder.create()
            trainer.run(watcher)
            folder.release()
            return trainer.net.state_dict()

        without = run("without", "graphs=false")
        assert captures == []
        replayed = run("replayed")
        assert len(captures) > 1
        assert [name for name in without if not torch.equal(without[name], replayed[name])] == []
