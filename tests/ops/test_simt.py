"""What the emulator of CUDA sees: writes and reads beyond the ends, missing barriers, threads that wait forever."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from kernel_steps import every_path
from simt import KERNELS, Emulator, needs_compiler

from linfnet.ops.cuda.implementation import Cuda
from linfnet.ops.cuda.nvrtc import Argument, Kernel, Launcher

pytestmark = needs_compiler

FAULTY = """
extern "C" __global__ void move(const float* from, float* to, int by) { to[threadIdx.x] = from[threadIdx.x + by]; }

extern "C" __global__ void write_at(float* to, int place) {
  if (threadIdx.x == 0) to[place] = 1.0f;
}

extern "C" __global__ void reverse(float* values, int size, int barrier) {
  __shared__ float kept[64];
  kept[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = kept[size - 1 - threadIdx.x];
}

extern "C" __global__ void copy_late(const float* from, float* to, int await) {
  __shared__ float kept[64];
  copy4(kept + threadIdx.x, from + threadIdx.x, true);
  if (await) await_copies();
  to[threadIdx.x] = kept[threadIdx.x];
}

extern "C" __global__ void part(float* values) {
  if (threadIdx.x == 0) __syncthreads();
  else __syncwarp();
}

extern "C" __global__ void fill_shared(float* values, int size) {
  DYNAMIC_SHARED(float, space);
  for (int k = threadIdx.x; k < size; k += 32) space[k] = values[0];
}

extern "C" __global__ void ignore_gate(float* to, const int* gate) { to[threadIdx.x] = 1.0f; }

extern "C" __global__ void halve(const float* from, u16* to, float* back, int size) {
  for (int k = threadIdx.x; k < size; k += blockDim.x) back[k] = from_half(to[k] = to_half(from[k]));
}
"""


@dataclass(frozen=True)
class Faulty(Kernel):
    """A kernel of the source above."""

    def source(self) -> str:
        return (KERNELS / "instructions.cuh").read_text() + FAULTY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faulty")


def run(emulator: Launcher, function: str, *arguments: Argument, threads: int = 32, shared: int = 0) -> None:
    emulator.launch(Faulty("", function), torch.device("cpu"), (1, 1, 1), threads, *arguments, shared=shared)


@pytest.mark.parametrize("place", [-1, 64, 500])
def test_writing_beyond_the_ends_fails(folder: Path, place: int) -> None:
    with pytest.raises(AssertionError, match="write_at writes beyond the ends of `to`"):
        run(Emulator(folder), "write_at", torch.zeros(64), place)
    run(Emulator(folder), "write_at", torch.zeros(64), 63)


@pytest.mark.parametrize(("shift", "strange"), [(-1, [0]), (0, []), (2, [30, 31])])
def test_what_is_read_beyond_the_ends_is_nan(folder: Path, shift: int, strange: list[int]) -> None:
    result = torch.zeros(32)
    run(Emulator(folder), "move", torch.ones(32), result, shift)
    assert result.isnan().nonzero().flatten().tolist() == strange


def test_a_written_tensor_shares_no_memory(folder: Path) -> None:
    values = torch.ones(64)
    run(Emulator(folder), "move", values[:32], values[32:], 0)
    with pytest.raises(AssertionError, match="move: `from` and `to` share memory"):
        run(Emulator(folder), "move", values[:32], values[31:63], 0)


def test_a_gate_is_not_ignored(folder: Path) -> None:
    run(Emulator(folder), "ignore_gate", torch.zeros(32), torch.ones(1, dtype=torch.int32))
    with pytest.raises(AssertionError, match="ignore_gate writes `to` behind a closed gate"):
        run(Emulator(folder), "ignore_gate", torch.zeros(32), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_missing_barrier_shows_in_every_order(folder: Path, order: int) -> None:
    emulator, values = Emulator(folder, order=order), torch.arange(64.0)
    run(emulator, "reverse", values, 64, 1, threads=64)
    assert torch.equal(values, torch.arange(64.0).flip(0))
    run(emulator, "reverse", values, 64, 0, threads=64)
    assert not torch.equal(values, torch.arange(64.0))


def test_copies_arrive_when_they_are_awaited(folder: Path) -> None:
    result = torch.zeros(32)
    run(Emulator(folder), "copy_late", torch.ones(32), result, 0)
    assert result.isnan().all()
    run(Emulator(folder), "copy_late", torch.ones(32), result, 1)
    assert (result == 1).all()


def test_threads_that_wait_forever_are_reported(folder: Path) -> None:
    with pytest.raises(AssertionError, match="part: its threads wait for each other at different places"):
        run(Emulator(folder), "part", torch.zeros(1), threads=64)


def test_dynamic_shared_memory_ends(folder: Path) -> None:
    run(Emulator(folder), "fill_shared", torch.zeros(1), 64, shared=256)
    with pytest.raises(AssertionError, match="fill_shared: it writes beyond its dynamic shared memory"):
        run(Emulator(folder), "fill_shared", torch.zeros(1), 65, shared=256)


def test_half_precision_is_that_of_torch(folder: Path) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()].float()
    # All of float16, what lies just below, half-way and just above, and what overflows.
    around = [
        torch.tensor([65519.9, 65520.0, 1e6, torch.inf, -torch.inf]),
        *(finite * f for f in (1 - 2**-12, 1 + 2**-11)),
    ]
    values = torch.cat([finite, (finite[:-1] + finite[1:]) / 2, *around])
    made, back = torch.zeros(len(values), dtype=torch.float16), torch.zeros(len(values))
    run(Emulator(folder), "halve", values, made, back, len(values))
    assert torch.equal(made.view(torch.int16), values.half().view(torch.int16))
    assert torch.equal(back, values.half().float())


def test_all_kernels_give_the_same_bits_in_every_order(libraries: Path) -> None:
    wanted = every_path(Cuda(Emulator(libraries)))
    for order in (1, 2):
        made = every_path(Cuda(Emulator(libraries, order=order)))
        assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


SANITIZED = """
import sys, pathlib, torch
from kernel_steps import every_path
from simt import Emulator
from linfnet.ops.cuda.implementation import Cuda
from test_simt import run

torch.set_num_threads(1)
emulator = Emulator(pathlib.Path(sys.argv[1]), sanitize=True)
every_path(Cuda(emulator))
print("all kernels are clean", flush=True)
run(emulator, "move", torch.ones(32), torch.ones(32), 1)
"""


def test_all_kernels_are_clean_under_address_sanitizer(libraries: Path) -> None:
    """One number read beyond the end is seen as well: by the last line."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    here = str(Path(__file__).parent)
    watched = {**os.environ, "LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": here}
    if subprocess.run([sys.executable, "-c", ""], env=watched, capture_output=True, check=False).stderr:
        pytest.skip("AddressSanitizer cannot be loaded")
    command = [sys.executable, "-c", SANITIZED, libraries]
    done = subprocess.run(command, env=watched, capture_output=True, text=True, check=False)
    assert done.stdout == "all kernels are clean\n", done.stderr
    assert "heap-buffer-overflow" in done.stderr
    assert "in move" in done.stderr
