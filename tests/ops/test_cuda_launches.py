"""The launches of the CUDA implementation, recorded without a GPU: arguments match the kernels, sources compile."""

import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from pathlib import Path

import pytest
import torch
from simt import LITTLE, MUCH, check_launch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from linfnet.errors import LinfnetError
from linfnet.ops import implementations
from linfnet.ops.cuda import Cuda, deciding, dense, dispatch, half, pruned, pruned_half, sparse, tensor_core
from linfnet.ops.cuda import sorted as sorted_sums
from linfnet.ops.cuda.dense import backward_kernel, backward_memory, backward_rows, forward_kernel
from linfnet.ops.cuda.dispatch import kernels_ahead
from linfnet.ops.cuda.infinity import FINISH_DEFINITIONS, Measure, bounds_kernel, maximum_kernel
from linfnet.ops.cuda.layout import backward_plan, forward_plan
from linfnet.ops.cuda.nvrtc import SOURCES, Argument, Grid, Kernel, Launcher, NoKernelsError


class Recorder(Launcher):
    """Checks every launch against the kernel's signature and does not run it."""

    def __init__(self, shared: int = MUCH) -> None:
        self.functions: list[str] = []
        self.kernels: set[Kernel] = set()
        self._shared = shared

    def multiprocessors(self, device: torch.device) -> int:
        return 132

    def shared_memory(self, device: torch.device) -> int:
        return self._shared

    def prepare(self, device: torch.device, key: Hashable, kernels: Callable[[], Iterable[Kernel]]) -> None:
        for kernel in kernels():
            assert kernel.parameters

    def launch(
        self, device: torch.device, kernel: Kernel, grid: Grid, threads: int = 0, shared: int = 0, **arguments: Argument
    ) -> None:
        check_launch(kernel, grid, threads or kernel.threads, arguments, shared, self._shared)
        self.functions.append(kernel.function)
        self.kernels.add(kernel)


@pytest.mark.parametrize("p", [1.0, 2.0, 8.0, 30.5, 64.0, 100.0, 1000.0, math.inf])
@pytest.mark.parametrize("shape", [(512, 10, 320), (3, 5, 7), (1030, 130, 33), (70, 100, 515)], ids=str)
def test_launches_fit_the_kernels(p: float, shape: tuple[int, int, int]) -> None:
    n, out, features = shape
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    recorder = Recorder()
    kernels = Cuda(recorder)
    assert kernels.forward(x, w, p).shape == (n, out)
    y, saved = kernels.forward_saving(x, w, p)
    assert (saved.shape, saved.dtype) == (kernels.saved_like(x, w, p).shape, kernels.saved_like(x, w, p).dtype)
    for need_x, need_w in ((True, True), (True, False), (False, True)):
        grad_x, grad_w = kernels.backward(grad, x, w, y, saved, p, need_x, need_w)
        assert grad_x.shape == (x.shape if need_x else (0,))
        assert grad_w.shape == (w.shape if need_w else (0,))
    used = set(recorder.functions)
    assert ({"dense_maximum", "scatter"} if math.isinf(p) else {"dense_sums", "dense_gradients"}) <= used
    listed = {"listed_maximum"} if math.isinf(p) else {"listed_distance", "listed_grad_w", "listed_grad_x"}
    assert (listed <= used) == pruned.supports(x, w, p)
    assert kernels.bounds(x, x, w)[0].shape == (n, out)
    assert kernels.bounds_saving(x, x, w)[3].shape == (n, out)


@pytest.mark.parametrize("p", [28.0, 100.0, 1000.0])
def test_the_backward_takes_the_lists_of_the_forward(p: float) -> None:
    x, w, grad = torch.randn(70, 515), torch.randn(100, 515), torch.randn(70, 100)
    recorder = Recorder()
    kernels = Cuda(recorder)
    y, saved = kernels.forward_saving(x, w, p)
    kernels.backward(grad, x, w, y, saved, p, True, True)
    made = ("transpose", "ranges", "output_lists", "decide_dense", "feature_lists")
    assert [recorder.functions.count(name) for name in made] == [1, 1, 1, 1, 1]


def test_launches_of_the_expansion_fit_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    x, w, grad = torch.randn(70, 3072), torch.randn(104, 3072), torch.randn(70, 104)
    recorder = Recorder()
    kernels = Cuda(recorder)
    assert kernels.forward(x, w, 8.0).shape == (70, 104)
    y, saved = kernels.forward_saving(x, w, 8.0)
    assert saved.shape == kernels.saved_like(x, w, 8.0).shape
    assert "finish_x" not in recorder.functions
    for need_x, need_w in ((True, True), (True, False), (False, True)):
        grad_x, grad_w = kernels.backward(grad, x, w, y, saved, 8.0, need_x, need_w)
        assert grad_x.shape == (x.shape if need_x else (0,))
        assert grad_w.shape == (w.shape if need_w else (0,))
    assert [recorder.functions.count(name) for name in ("combine", "finish_x", "finish_w")] == [2, 2, 2]
    monkeypatch.undo()
    assert not tensor_core.supports(x, w, 8.0)
    assert not tensor_core.supports(x, w, 9.0)


def test_huge_layers_are_not_expanded() -> None:
    number = torch.zeros(1)
    shapes = [(512, 5120, 5120), (1000, 5120, 5120), (10_000, 5120, 5120), (64, 20_480, 20_480)]
    supported = [tensor_core.supports(number.expand(n, size), number.expand(out, size), 8.0) for n, out, size in shapes]
    assert supported == [True, True, False, False]


@pytest.mark.parametrize("p", [8.0, 28.0, 200.5, math.inf])
def test_what_is_saved_is_known_for_any_number_of_rows(p: float) -> None:
    """Call the operator like torch.compile: with a fake tensor that has a symbolic size."""
    free = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    w = mode.from_tensor(torch.empty(1024, 1024), static_shapes=True)
    x = mode.from_tensor(torch.empty(512, 1024), symbolic_context=free)
    with mode:
        size = Cuda(Recorder()).saved_like(x, w, p).numel()
    wanted = Cuda(Recorder()).saved_like(torch.empty(512, 1024), torch.empty(1024, 1024), p).numel()
    assert int(size) == wanted


@pytest.mark.parametrize("shared", [LITTLE, MUCH])
@pytest.mark.parametrize("p", [8.0, 200.5, math.inf])
def test_wide_layers_fit_the_shared_memory(p: float, shared: int) -> None:
    x, w, grad = torch.randn(40, 5120), torch.randn(10, 5120), torch.randn(40, 10)
    recorder = Recorder(shared)
    kernels = Cuda(recorder)
    kernels.backward(grad, x, w, *kernels.forward_saving(x, w, p), p, True, True)
    assert ("scatter" if math.isinf(p) else "dense_gradients") in recorder.functions
    assert math.isinf(p) or sum(backward_memory(backward_rows(p, shared), p)) <= shared


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.process
@pytest.mark.parametrize("p", [8.0, 200.5])
def test_the_backward_holds_the_shared_memory_it_is_said_to(p: float, tmp_path: Path) -> None:
    rows = backward_rows(p, LITTLE)
    source = tmp_path / "backward.cu"
    source.write_text(backward_kernel(p if p <= 64 else None, True, True, rows).source())
    command = ["nvcc", "-arch=sm_86", "-cubin", "-Xptxas", "-v", "-o", "/dev/null", source]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert re.findall(r"(\d+) bytes smem", report) == [str(backward_memory(rows, p)[0])]


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
@pytest.mark.parametrize("p", [8.0, 2.5, math.inf])
def test_nothing_is_launched_for_nothing(p: float, shape: tuple[int, int, int]) -> None:
    n, out, features = shape
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    recorder = Recorder()
    kernels = Cuda(recorder)
    y, saved = kernels.forward_saving(x, w, p)
    grads = kernels.backward(grad, x, w, y, saved, p, True, True)
    kernels.bounds_saving(x, x, w)
    assert recorder.functions == []
    assert all(not tensor.any() for tensor in (y, *grads))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (512, 10, 5120), (512, 5120, 3072), (100_000, 64, 27), (7, 9000, 33), (512, 5120, 5_000_000)]
)
def test_plans_cover_everything_once(shape: tuple[int, int, int]) -> None:
    n, out, features = shape
    (_, _, parts), span = forward_plan(n, out, features, 132)
    assert span % 32 == 0
    assert span // 32 <= 2**16
    assert (parts - 1) * span < features <= parts * span
    (_, out_parts, row_parts), out_span, row_span = backward_plan(n, out, features, 132)
    assert row_span % 8 == 0
    assert out_span % 128 == 0
    assert (out_parts - 1) * out_span < out <= out_parts * out_span
    assert (row_parts - 1) * row_span < n <= row_parts * row_span


@pytest.mark.parametrize(
    ("p", "following"),
    [(8.0, (10.0, 12.0)), (20.0, (22.0, 24.0)), (28.0, (30.0, 32.0)), (64.0, (68.0, 72.0)), (30.3, (31.3,))],
)
def test_kernels_of_the_next_p_are_made_ahead(p: float, following: tuple[float, ...]) -> None:
    made = set(kernels_ahead(p, 512, MUCH))
    for q in (p, *following):
        assert {
            forward_kernel(q if q <= 64 else None),
            *(pruned.kernels(q, 512) if q >= pruned.SMALLEST_P else ()),
        } <= made


@pytest.mark.parametrize("shape", [(512, 128, 1024), (4096, 12, 48)], ids=str)
@pytest.mark.parametrize("in_float16", [False, True])
@pytest.mark.parametrize("p", [8.0, 12.0, 20.0, 24.0, 28.0, 40.0, 64.0, 96.0, 128.0, 512.0, math.inf])
def test_a_step_compiles_no_kernel_of_its_p(
    p: float, in_float16: bool, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel whose source depends on p is compiled ahead, by other threads."""
    monkeypatch.setattr(half, "SMALLEST", 0)
    monkeypatch.setattr(tensor_core, "SMALLEST", 0)
    n, out, features = shape
    x, w, grad = torch.randn(n, features), torch.randn(out, features), torch.randn(n, out)
    recorder = Recorder()
    kernels = Cuda(recorder)
    with half.training_in_float16(in_float16):
        y, saved = kernels.forward_saving(x, w, p)
        for need_x in (True, False):
            kernels.backward(grad, x, w, y, saved, p, need_x, True)
        ahead = {kernel.source() for kernel in kernels_ahead(p, 512, MUCH)}
    late = {kernel for kernel in recorder.kernels if kernel.source() not in ahead}
    assert not [kernel for kernel in late if kernel.power or "P" in dict(kernel.definitions)]


def test_a_huge_p_has_the_kernels_of_every_large_one() -> None:
    assert set(kernels_ahead(2.0**60, 512, MUCH)) == set(kernels_ahead(200.0, 512, MUCH))
    assert set(kernels_ahead(129.0, 512, MUCH)) <= set(kernels_ahead(128.0, 512, MUCH))


def test_the_reference_computes_a_huge_finite_p() -> None:
    x, w = torch.rand(3, 5), torch.rand(4, 5)
    cuda, reference = Cuda(Recorder()), implementations.get("reference")
    for p in (1e6, 1e30):
        y, saved = cuda.forward_saving(x, w, p)
        assert saved.shape == cuda.saved_like(x, w, p).shape
        assert torch.equal(y, reference.forward(x, w, p))
        assert torch.equal(y, cuda.forward(x, w, p))
        gradients = cuda.backward(torch.ones_like(y), x, w, y, saved, p, True, True)
        expected = reference.backward(torch.ones_like(y), x, w, y, saved, p, True, True)
        assert all(map(torch.equal, gradients, expected))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a GPU that torch reports and that has not been tested yet."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA T4")
    monkeypatch.setattr(dispatch, "_obstacle", cache(dispatch._obstacle.__wrapped__))
    monkeypatch.setattr(dispatch, "_warn_once", cache(dispatch._warn_once.__wrapped__))


@pytest.mark.usefixtures("gpu")
def test_an_old_gpu_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.warns(UserWarning, match="instead: NVIDIA T4 has architecture sm_75; expected sm_80 or later$"):
        assert implementations.choose("cuda", torch.float32) == "reference"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "error", [NoKernelsError("NVRTC cannot compile scale.cu"), LinfnetError("CUDA: loading failed")]
)
def test_an_unsupported_gpu_is_reported_once(error: LinfnetError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: dense.Dense, probe: torch.Tensor) -> torch.Tensor:
        raise type(error)(f"{error}\nand a page of what the compiler says")

    monkeypatch.setattr(torch, "ones", lambda size, device: torch.zeros(size))
    monkeypatch.setattr(dense.Dense, "largest", fail)
    with pytest.warns(UserWarning, match=f"using the slow reference instead: {error}$") as warned:
        chosen = [implementations.choose("cuda", torch.float32) for _ in range(3)]
    assert chosen == ["reference"] * 3
    assert len(warned) == 1
    assert dispatch.status() == f"cuda kernels: not available ({error})"


ENDS_EARLY = """
import time, torch
from linfnet.ops.cuda import nvrtc

nvrtc._architecture = lambda device: "sm_90"
nvrtc.binary = lambda *_: time.sleep(0.5) or b""
kernels = [nvrtc.Kernel("scale.cu", "absolute_max", (("N", n),)) for n in range(400)]
nvrtc.Launcher().prepare(torch.device("cuda", 0), "key", lambda: kernels)
"""


@pytest.mark.process
def test_a_program_that_ends_does_not_wait_for_kernels_made_ahead() -> None:
    # Compiling all of them, eight at a time, would take 25 seconds.
    subprocess.run([sys.executable, "-c", ENDS_EARLY], check=True, timeout=20)


def test_p_with_the_same_kernels_are_prepared_once() -> None:
    same = dispatch._kernel_key  # pyright: ignore[reportPrivateUsage]
    assert same(8.1) == same(8.9) != same(9.1)
    assert same(150.0) == same(1000.3)
    assert len({same(p) for p in (8.0, 8.1, 9.0, 100.0, 100.5, 128.0, 129.0, math.inf)}) == 8


@pytest.mark.process
def test_importing_does_not_touch_cuda() -> None:
    code = "import torch, linfnet.ops; assert not torch.cuda.is_initialized(); print(linfnet.ops.names())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cuda" in done.stdout


def test_kernels_have_distinct_names_and_declare_their_threads() -> None:
    sources = {file.name: file.read_text() for file in SOURCES.glob("*.cu")}
    kernels = [
        Kernel(file, name)
        for file, source in sources.items()
        for name in re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(", source)
    ]
    assert len(kernels) == len({kernel.function for kernel in kernels}) > 25
    assert [kernel.function for kernel in kernels if not kernel.threads] == [
        "scatter"
    ]  # its threads depend on the layer


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.process
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sources_compile(architecture: str, tmp_path: Path) -> None:
    kernels = [
        *(forward_kernel(p) for p in (8.0, 8.3, None)),
        *(maximum_kernel(runs) for runs in (False, True)),
        *(backward_kernel(p, True, True, 16) for p in (7.0, 7.3, None)),
        backward_kernel(64.0, True, True, 16),
        half.forward_kernel("half_sums", 12),
        half.backward_kernel("half_gradients", 12),
        *(pruned_half.kernel("", 64, vectors) for vectors in (1, 2)),
        Kernel("pruned_half_pairs.cu", "", (("SQUARE", 32),)),
        bounds_kernel(True),
        Kernel("finish.cu", "finish_sum", FINISH_DEFINITIONS),
        *(Kernel(file, "") for file in ("gradients.cu", "scale.cu", "scatter.cu", "sparse_gradients.cu")),
        *(sparse.forward_kernel("", rows, save) for rows in (1, 8) for save in (False, True)),
        *(sparse.power_kernel("", rows) for rows in (1, 4)),
        deciding.COUNT,
        *(sorted_sums.sums_kernel(10, measure, save) for measure in Measure for save in (False, True)),
        *(kernel for single in (False, True) for kernel in tensor_core.kernels(8.0, single=single)),
        pruned.list_kernel("transpose"),
        *(pruned.maximum_kernel(index, 2) for index in (False, True)),
        *(pruned.forward_kernel(p, 2) for p in (28.0, 128.0, 30.5, 200.5)),
        *(pruned.backward_kernel(p, 4, "listed_grad_w") for p in (28.0, 128.0, 30.5, 200.5)),
    ]
    assert {kernel.file for kernel in kernels} == {file.name for file in SOURCES.glob("*.cu")}
    for number, kernel in enumerate(kernels):
        source = tmp_path / f"{number}-{kernel.file}"
        source.write_text(kernel.source())
        subprocess.run(["nvcc", f"-arch={architecture}", "-cubin", "-o", "/dev/null", source], check=True)
