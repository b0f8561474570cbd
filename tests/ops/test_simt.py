"""The CUDA emulator must detect accesses beyond the ends, missing barriers and threads that wait forever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from faulty_kernels import run
from kernel_steps import every_path
from simt import Emulator, needs_compiler

from linfnet.ops.cuda import Cuda
from linfnet.ops.cuda.nvrtc import NoKernelsError

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faulty")


@pytest.mark.parametrize("index", [-1, 64, 500])
def test_writing_beyond_the_ends_fails(folder: Path, index: int) -> None:
    with pytest.raises(AssertionError, match="write_at writes beyond the ends of `target`"):
        run(Emulator(folder), "write_at", target=torch.zeros(64), index=index)
    run(Emulator(folder), "write_at", target=torch.zeros(64), index=63)


@pytest.mark.parametrize(("shift", "strange"), [(-1, [0]), (0, []), (2, [30, 31])])
def test_what_is_read_beyond_the_ends_is_nan(folder: Path, shift: int, strange: list[int]) -> None:
    result = torch.zeros(32)
    run(Emulator(folder), "move", source=torch.ones(32), target=result, by=shift)
    assert result.isnan().nonzero().flatten().tolist() == strange


def test_a_written_tensor_shares_no_memory(folder: Path) -> None:
    values = torch.ones(64)
    run(Emulator(folder), "move", source=values[:32], target=values[32:], by=0)
    with pytest.raises(AssertionError, match="move: `source` and `target` share memory"):
        run(Emulator(folder), "move", source=values[:32], target=values[31:63], by=0)


def test_the_flag_is_not_ignored(folder: Path) -> None:
    flag = torch.ones(1, dtype=torch.int32)
    run(Emulator(folder), "ignore_flag", target=torch.zeros(32), use_dense=flag)
    with pytest.raises(AssertionError, match="ignore_flag writes `target` in spite of use_dense"):
        run(Emulator(folder), "ignore_flag", target=torch.zeros(32), use_dense=flag - 1)


def test_arguments_must_be_those_of_the_kernel(folder: Path) -> None:
    with pytest.raises(TypeError, match="move: arguments by, shift are missing or not declared by the kernel"):
        run(Emulator(folder), "move", source=torch.ones(32), target=torch.ones(32), shift=0)
    with pytest.raises(AssertionError):
        run(Emulator(folder), "move", source=torch.ones(32), target=torch.ones(32), by=2**31)
    with pytest.raises(NoKernelsError, match="the source has no kernel absent"):
        run(Emulator(folder), "absent")


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_missing_barrier_shows_in_every_order(folder: Path, order: int) -> None:
    emulator, values = Emulator(folder, order=order), torch.arange(64.0)
    run(emulator, "reverse", values=values, size=64, barrier=1, threads=64)
    assert torch.equal(values, torch.arange(64.0).flip(0))
    run(emulator, "reverse", values=values, size=64, barrier=0, threads=64)
    assert not torch.equal(values, torch.arange(64.0))


def test_copies_arrive_when_they_are_awaited(folder: Path) -> None:
    result = torch.zeros(32)
    run(Emulator(folder), "copy_late", source=torch.ones(32), target=result, wait=0)
    assert result.isnan().all()
    run(Emulator(folder), "copy_late", source=torch.ones(32), target=result, wait=1)
    assert (result == 1).all()


def test_threads_that_wait_forever_are_reported(folder: Path) -> None:
    with pytest.raises(AssertionError, match="part: its threads wait for each other at different barriers"):
        run(Emulator(folder), "part", values=torch.zeros(1), threads=64)


def test_dynamic_shared_memory_ends(folder: Path) -> None:
    run(Emulator(folder), "fill_shared", values=torch.zeros(1), size=64, shared=256)
    with pytest.raises(AssertionError, match="fill_shared: it writes beyond its dynamic shared memory"):
        run(Emulator(folder), "fill_shared", values=torch.zeros(1), size=65, shared=256)


def test_half_precision_is_that_of_torch(folder: Path) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()].float()
    # All float16 numbers, float32 numbers just below, half-way between and just above them, and numbers that overflow.
    around = [
        torch.tensor([65519.9, 65520.0, 1e6, torch.inf, -torch.inf]),
        *(finite * f for f in (1 - 2**-12, 1 + 2**-11)),
    ]
    values = torch.cat([finite, (finite[:-1] + finite[1:]) / 2, *around])
    made, back = torch.zeros(len(values), dtype=torch.float16), torch.zeros(len(values))
    run(Emulator(folder), "halve", source=values, halves=made, back=back, size=len(values))
    assert torch.equal(made.view(torch.int16), values.half().view(torch.int16))
    assert torch.equal(back, values.half().float())


def test_all_kernels_give_the_same_bits_in_every_order(libraries: Path) -> None:
    wanted = every_path(Cuda(Emulator(libraries)))
    for order in (1, 2):
        made = every_path(Cuda(Emulator(libraries, order=order)))
        assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


SANITIZED = """
import sys, pathlib, torch
from faulty_kernels import run
from kernel_steps import every_path
from simt import Emulator
from sparse_cases import every_sparse_path
from linfnet.ops.cuda import Cuda

torch.set_num_threads(1)
emulator = Emulator(pathlib.Path(sys.argv[1]), sanitize=True)
every_path(Cuda(emulator))
every_sparse_path(emulator)
print("all kernels are clean", flush=True)
run(emulator, "move", source=torch.ones(32), target=torch.ones(32), by=1)
"""


def test_all_kernels_are_clean_under_address_sanitizer(libraries: Path) -> None:
    """The last line checks that reading one number beyond the end is detected."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    loaded = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": paths}
    watched = {**os.environ, **loaded}
    if subprocess.run([sys.executable, "-c", ""], env=watched, capture_output=True, check=False).stderr:
        pytest.skip("AddressSanitizer cannot be loaded")
    command = [sys.executable, "-c", SANITIZED, libraries]
    done = subprocess.run(command, env=watched, capture_output=True, text=True, check=False)
    assert done.stdout == "all kernels are clean\n", done.stderr
    assert "heap-buffer-overflow" in done.stderr
    assert "in move" in done.stderr
