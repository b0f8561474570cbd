"""CUDA kernels on a CPU, for tests: g++ compiles their sources against simt.h, which has CUDA's words.

Every tensor a kernel gets is a copy between two fences of NaN. What a kernel writes there fails the test; what it reads
there shows in the result. `Emulator(order=...)` runs threads and blocks in another order: the bits must be the same.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from linfnet.ops.cuda.nvrtc import KERNELS, Argument, Kernel, Launcher, Long, as_c

HEADERS = [Path(__file__).with_name(name) for name in ("simt.h", "fibres.h")]
FLAGS = "-std=c++17 -O1 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -U_FORTIFY_SOURCE"
SANITIZED = f"{FLAGS} -g1 -fsanitize=address,alignment -fno-sanitize-recover=all"
FENCE = 4096  # bytes
# Shared memory that a block may take: on an H200, and on consumer GPUs such as those of architecture sm_86.
MUCH, LITTLE = 227 * 1024, 99 * 1024
# What a parameter takes: tensors of int32 where nothing else is said.
POINTERS = {"float*": torch.float32, "float2*": torch.float32, "u16*": torch.float16}
NUMBERS = {"i64": Long, "int": int, "float": float}

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="kernels run on a CPU on Linux, with g++"
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, as its source declares it."""

    name: str
    kind: str
    written: bool


@cache
def parameters(kernel: Kernel) -> list[Parameter]:
    """The parameters of a kernel, read from its source."""
    found = re.search(rf"\b{kernel.function}\(([^)]*)\)\s*{{", kernel.source())
    assert found, kernel.function
    result: list[Parameter] = []
    for text in found[1].split(","):
        *kind, name = text.replace("const", "").replace("__restrict__", "").split()
        result.append(Parameter(name, "".join(kind), "*" in text and "const" not in text))
    return result


def check_launch(
    kernel: Kernel, grid: tuple[int, int, int], threads: int, arguments: Sequence[Argument], shared: int, most: int
) -> None:
    """That a launch fits the kernel's parameters and the limits of a GPU with `most` bytes of shared memory."""
    wanted = parameters(kernel)
    assert len(arguments) == len(wanted), kernel.function
    for parameter, argument in zip(wanted, arguments, strict=True):
        what = (kernel.function, parameter, argument)
        if parameter.kind in NUMBERS:
            assert type(argument) is NUMBERS[parameter.kind], what
        elif argument is not None:
            assert type(argument) is Tensor, what
            assert argument.is_contiguous(), what
            assert argument.dtype == POINTERS.get(parameter.kind, torch.int32), what
    assert all(1 <= blocks <= limit for blocks, limit in zip(grid, (2**31 - 1, 65535, 65535), strict=True))
    assert 32 <= threads <= 1024
    assert 0 <= shared <= most, kernel.function


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    ends = (tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in (a, b))
    return max(a.data_ptr(), b.data_ptr()) < min(ends)


class Fenced:
    """A copy of a tensor between two fences, at an address as well aligned as the tensor's."""

    def __init__(self, tensor: Tensor, fence: int, mark: int) -> None:
        """`mark` makes the fences of each argument another NaN, so that copies from fence to fence are seen."""
        self._content, self._mark = tensor.view(-1).view(torch.int16), -2 - mark  # NaN as float16 and as float32
        self._start, size = (fence + tensor.data_ptr() % 16) // 2, self._content.numel()
        self._memory = torch.full((self._start + size + fence // 2,), self._mark, dtype=torch.int16)
        self.inside = self._memory[self._start : self._start + size].copy_(self._content)

    def is_whole(self) -> bool:
        """Whether nothing was written into the fences."""
        before, behind = self._memory[: self._start], self._memory[self._start + self.inside.numel() :]
        return bool((before == self._mark).all() and (behind == self._mark).all())

    def is_untouched(self) -> bool:
        """Whether the copy is still one."""
        return torch.equal(self.inside, self._content)

    def take_back(self) -> None:
        """Give the tensor what was written."""
        self._content.copy_(self.inside)


def is_shut(parameter: Parameter, tensor: Tensor) -> bool:
    """Whether a kernel must return at once: a gate of zero, or a flag by which another kernel serves."""
    return (parameter.name == "gate" and not tensor.item()) or (
        parameter.name == "flag" and not parameter.written and bool(tensor.item())
    )


class Emulator(Launcher):
    """Runs kernels on CPU tensors; libraries are kept in `folder`, which processes may share."""

    def __init__(self, folder: Path, *, order: int = 0, sanitize: bool = False, shared: int = MUCH) -> None:
        """`sanitize`: with AddressSanitizer, which must be loaded already, and which sets fences of its own."""
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
        self,
        kernel: Kernel,
        device: torch.device,
        grid: tuple[int, int, int],
        threads: int,
        *arguments: Argument,
        shared: int = 0,
    ) -> None:
        check_launch(kernel, grid, threads, arguments, shared, self._shared)
        wanted = parameters(kernel)
        tensors = [
            (parameter, one) for parameter, one in zip(wanted, arguments, strict=True) if isinstance(one, Tensor)
        ]
        for (first, a), (second, b) in combinations(tensors, 2):
            apart = not (first.written or second.written) or not overlap(a, b)
            assert apart, f"{kernel.function}: `{first.name}` and `{second.name}` share memory, and one is written"
        copies = {parameter.name: Fenced(tensor, self._fence, mark) for mark, (parameter, tensor) in enumerate(tensors)}
        values = [
            as_c(copies[parameter.name].inside if parameter.name in copies else argument)
            for parameter, argument in zip(wanted, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        trouble = self._function(kernel)((ctypes.c_int * 3)(*grid), threads, shared, self._order, pointers)
        assert trouble is None, f"{kernel.function}: {trouble.decode()}"
        shut = any(is_shut(parameter, tensor) for parameter, tensor in tensors)
        for name, copy in copies.items():
            assert copy.is_whole(), f"{kernel.function} writes beyond the ends of `{name}`"
            assert not shut or copy.is_untouched(), f"{kernel.function} writes `{name}` behind a closed gate"
            copy.take_back()

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
            text, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
            text.write_text(source)
            # The source stays beside the library: reports name its lines. The compiler itself is not watched.
            text = text.replace(path.with_suffix(".cpp"))
            command = ["g++", *self._flags.split(), "-I", HEADERS[0].parent, "-o", made, text]
            alone = {**os.environ, "LD_PRELOAD": ""}
            done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return made.replace(path)


@cache
def plain_source(kernel: Kernel) -> str:
    """A kernel's source in C++ that needs no GPU; the same for all kernels of a file with the same definitions."""
    source, instructions = kernel.source(), (KERNELS / "instructions.cuh").read_text()
    assert instructions in source
    names = re.findall(r"__global__ void(?:\s+__launch_bounds__\(.*\))?\s+(\w+)\(", source)
    assert kernel.function in names
    lines = "".join(f"SIMT_KERNEL({name})\n" for name in names)
    return f'#include "simt.h"\n{source.replace(instructions, "")}{lines}'
