"""CUDA kernels on a CPU, for tests: g++ compiles their sources against simt.h, which emulates CUDA.

Every tensor argument is copied between two fences of NaN. A write to a fence fails the test; a read from a fence makes
the result NaN. `Emulator(order=...)` runs threads and blocks in another order: the results must have the same bits.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from linfnet.ops.cuda.nvrtc import SOURCES, Argument, Grid, Kernel, Launcher, Parameter

HEADERS = [Path(__file__).with_name(name) for name in ("simt.h", "fibres.h")]
FLAGS = "-std=c++17 -O1 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -U_FORTIFY_SOURCE"
SANITIZED = f"{FLAGS} -g1 -fsanitize=address,alignment -fno-sanitize-recover=all"
FENCE = 4096  # bytes
# Shared memory per block: on an H200, and on consumer GPUs such as those of architecture sm_86.
MUCH, LITTLE = 227 * 1024, 99 * 1024
# The dtype of tensors by declared type (int32 for other pointers), and the range of integers.
POINTERS = {"float*": torch.float32, "float2*": torch.float32, "u16*": torch.float16}
INTEGERS = {"i64": 2**63, "int": 2**31}

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="kernels run on a CPU on Linux, with g++"
)


def check_launch(
    kernel: Kernel, grid: Grid, threads: int, arguments: Mapping[str, Argument], shared: int, most: int
) -> None:
    """Check a launch against the kernel's parameters and the limits of a GPU with `most` bytes of shared memory."""
    kernel.pack(dict(arguments))
    for parameter in kernel.parameters:
        argument = arguments[parameter.name]
        what = (kernel.function, parameter, argument)
        if parameter.kind in INTEGERS:
            assert isinstance(argument, int), what
            assert -INTEGERS[parameter.kind] <= argument < INTEGERS[parameter.kind], what
        elif parameter.kind == "float":
            assert type(argument) is float, what
        elif argument is not None:
            assert type(argument) is Tensor, what
            assert argument.is_contiguous(), what
            assert argument.dtype == POINTERS.get(parameter.kind, torch.int32), what
    assert all(1 <= blocks <= limit for blocks, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=True))
    assert 32 <= threads <= (kernel.threads or 1024), kernel.function
    assert 0 <= shared <= most, kernel.function


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    ends = (tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in (a, b))
    return max(a.data_ptr(), b.data_ptr()) < min(ends)


class Fenced:
    """A copy of a tensor between two fences, with the same alignment as the tensor."""

    def __init__(self, tensor: Tensor, fence: int, mark: int) -> None:
        """`mark` gives the fences of each argument a different NaN, so that copies between fences are detected."""
        self._content, self._mark = tensor.view(-1).view(torch.int16), -2 - mark  # NaN as float16 and as float32
        self._start, size = (fence + tensor.data_ptr() % 16) // 2, self._content.numel()
        self._memory = torch.full((self._start + size + fence // 2,), self._mark, dtype=torch.int16)
        self.inside = self._memory[self._start : self._start + size].copy_(self._content)

    def is_whole(self) -> bool:
        """Whether nothing was written into the fences."""
        before, behind = self._memory[: self._start], self._memory[self._start + self.inside.numel() :]
        return bool((before == self._mark).all() and (behind == self._mark).all())

    def is_untouched(self) -> bool:
        """Whether the copy is unchanged."""
        return torch.equal(self.inside, self._content)

    def copy_back(self) -> None:
        """Copy the written data back to the tensor."""
        self._content.copy_(self.inside)


def must_return(kernel: Kernel, parameter: Parameter, tensor: Tensor) -> bool:
    """Whether a kernel must return at once: a pruned kernel if use_dense is 1, a dense one if it is 0."""
    if parameter.name != "use_dense" or parameter.written:
        return False
    return bool(tensor.item()) == kernel.file.startswith("pruned")


class Emulator(Launcher):
    """Runs kernels on CPU tensors; compiled libraries are stored in `folder`, which processes may share."""

    def __init__(self, folder: Path, *, order: int = 0, sanitize: bool = False, shared: int = MUCH) -> None:
        """`sanitize`: use AddressSanitizer, which must already be loaded and which adds separate fences."""
        self._shared = shared
        self._order, self._folder, self._fence = order, folder, 0 if sanitize else FENCE
        self._flags = SANITIZED if sanitize else FLAGS
        self._libraries: dict[str, ctypes.CDLL] = {}

    def multiprocessors(self, device: torch.device) -> int:
        return 2

    def shared_memory(self, device: torch.device) -> int:
        return self._shared

    def prepare(self, device: torch.device, key: Hashable, kernels: Callable[[], Iterable[Kernel]]) -> None:
        pass

    def launch(
        self, device: torch.device, kernel: Kernel, grid: Grid, threads: int = 0, shared: int = 0, **arguments: Argument
    ) -> None:
        threads = threads or kernel.threads
        check_launch(kernel, grid, threads, arguments, shared, self._shared)
        tensors: list[tuple[Parameter, Tensor]] = []
        for parameter in kernel.parameters:
            argument = arguments[parameter.name]
            if isinstance(argument, Tensor):
                tensors.append((parameter, argument))
        for (first, a), (second, b) in combinations(tensors, 2):
            apart = not (first.written or second.written) or not overlap(a, b)
            assert apart, f"{kernel.function}: `{first.name}` and `{second.name}` share memory, and one is written"
        copies = {parameter.name: Fenced(tensor, self._fence, mark) for mark, (parameter, tensor) in enumerate(tensors)}
        fenced = {name: copy.inside for name, copy in copies.items()}
        addresses, _values = kernel.pack({**arguments, **fenced})
        error = self._function(kernel)((ctypes.c_int * 3)(*grid), threads, shared, self._order, addresses)
        assert error is None, f"{kernel.function}: {error.decode()}"
        inactive = any(must_return(kernel, parameter, tensor) for parameter, tensor in tensors)
        for name, copy in copies.items():
            assert copy.is_whole(), f"{kernel.function} writes beyond the ends of `{name}`"
            assert not inactive or copy.is_untouched(), f"{kernel.function} writes `{name}` in spite of use_dense"
            copy.copy_back()

    def _function(self, kernel: Kernel) -> Callable[..., bytes | None]:
        source = plain_source(kernel)
        if source not in self._libraries:
            self._libraries[source] = ctypes.CDLL(str(self._library(Path(kernel.file).stem, source)))
        function = self._libraries[source][f"simt_{kernel.function}"]
        function.restype = ctypes.c_char_p
        return function

    def _library(self, name: str, source: str) -> Path:
        content = "\0".join((source, self._flags, *(header.read_text() for header in HEADERS)))
        path = self._folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            text, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
            text.write_text(source)
            # The source stays beside the library: reports refer to its lines. The compiler runs without the sanitizer.
            text = text.replace(path.with_suffix(".cpp"))
            command = ["g++", *self._flags.split(), "-I", HEADERS[0].parent, "-o", library, text]
            plain = {**os.environ, "LD_PRELOAD": ""}
            done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return library.replace(path)


@cache
def plain_source(kernel: Kernel) -> str:
    """Return the C++ source of a kernel for the CPU; it is equal for kernels of a file with the same definitions."""
    source, instructions = kernel.source(), (SOURCES / "instructions.cuh").read_text()
    assert instructions in source
    names = re.findall(r"__global__ void(?:\s+__launch_bounds__\(.*\))?\s+(\w+)\(", source)
    assert kernel.function in names
    lines = "".join(f"SIMT_KERNEL({name})\n" for name in names)
    return f'#include "simt.h"\n{source.replace(instructions, "")}{lines}'
