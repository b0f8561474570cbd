"""From CUDA source to running kernels: NVRTC compiles, the driver launches. The only file that knows how.

Both libraries are called through ctypes: NVRTC comes with every CUDA build of torch, the driver library with the
driver, and no further package is needed. Compiled kernels are kept in $XDG_CACHE_HOME/linfnet/kernels.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.files import replacing

KERNELS = Path(__file__).parent / "kernels"

# int: 32 bits, Long: 64 bits, float: 32 bits, None: a null pointer.
Argument = Tensor | int | float | None


class Long(int):
    """An integer that a kernel takes with 64 bits."""


class NoKernelsError(LinfnetError):
    """NVRTC or the driver cannot serve this machine."""


@dataclass(frozen=True)
class Kernel:
    """One function of one source file, compiled with the given definitions; `power` stands for `#include "power"`."""

    file: str
    function: str
    definitions: tuple[tuple[str, int], ...] = ()
    power: str = ""

    def source(self) -> str:
        """The whole source as one text: definitions, and the file with its includes in place."""
        defined = "".join(f"#define {name} {value}\n" for name, value in self.definitions)
        return defined + _expanded(self.file).replace('#include "power"', self.power)


@cache
def _expanded(file: str) -> str:
    lines = (KERNELS / file).read_text(encoding="utf-8").splitlines()
    include = '#include "'
    files = (line[len(include) : -1] if line.startswith(include) and line.endswith('.cuh"') else None for line in lines)
    return "\n".join(_expanded(name) if name else line for name, line in zip(files, lines, strict=True)) + "\n"


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "linfnet" / "kernels"


def _library_paths() -> Iterator[str]:
    """Where NVRTC may lie, of the version torch was built with: torch's own packages first, then the system."""
    major = (torch.version.cuda or "13").split(".")[0]
    package = importlib.util.find_spec("nvidia")
    for root in (package.submodule_search_locations or []) if package else []:
        yield from sorted(str(path) for path in Path(root).glob(f"*/lib/libnvrtc.so.{major}*"))
    yield from (f"libnvrtc.so.{major}", f"nvrtc64_{major}0_0.dll", "libnvrtc.so")


@cache
def _nvrtc() -> ctypes.CDLL:
    for path in _library_paths():
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    raise NoKernelsError("NVRTC was not found beside torch or on the library path")


@cache
def _driver() -> ctypes.CDLL:
    for path in ("libcuda.so.1", "nvcuda.dll"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    raise NoKernelsError("the CUDA driver library was not found")


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise LinfnetError(f"CUDA: {what} failed: {(text.value or b'error').decode()} ({code})")


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the NVRTC in use."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _compile(source: str, name: str, architecture: str) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        if failed:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise NoKernelsError(f"NVRTC cannot compile {name} for {architecture}: {log.value.decode()[:2000]}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def binary(source: str, name: str, architecture: str) -> bytes:
    """The machine code of a source, from the cache or compiled now."""
    key = hashlib.sha256(f"{source}\0{architecture}\0{nvrtc_version()}".encode()).hexdigest()[:32]
    path = cache_folder() / f"{Path(name).stem}-{architecture}-{key}.cubin"
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        if kept.startswith(b"\x7fELF"):  # a machine that crashed may have left an empty file
            return kept
    code = _compile(source, name, architecture)
    # A cache that cannot be written costs time at the next start, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as place:
            place.write_bytes(code)
    return code


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="linfnet-nvrtc")
    # A program that ends waits for threads before it calls what `atexit` knows: too late to drop what is queued.
    at_end: Callable[..., None] = getattr(threading, "_register_atexit", lambda *_, **__: None)
    at_end(pool.shutdown, wait=False, cancel_futures=True)
    return pool


# Machine code that was asked for ahead of its use, by source and architecture.
_ahead: dict[tuple[str, str], Future[bytes]] = {}
_prepared: set[tuple[int, Hashable]] = set()


def _architecture(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@contextlib.contextmanager
def _context(device: int) -> Generator[None]:
    """Make torch's context of a device the current one: threads that only run kernels may not have one yet."""
    _check(_driver().cuCtxPushCurrent_v2(_primary_context(device)), "making the context current")
    try:
        yield
    finally:
        _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def _primary_context(device: int) -> ctypes.c_void_p:
    torch.cuda.current_stream(device)
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(handle), device), "finding the device")
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "retaining the context")
    return context


@cache
def _function(kernel: Kernel, device: int) -> ctypes.c_void_p:
    source, architecture = kernel.source(), _architecture(device)
    ahead = _ahead.pop((source, architecture), None)
    code = ahead.result() if ahead else binary(source, kernel.file, architecture)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with _context(device):
        _check(_driver().cuModuleLoadData(ctypes.byref(module), code), f"loading {kernel.file}")
        _check(
            _driver().cuModuleGetFunction(ctypes.byref(function), module, kernel.function.encode()),
            f"finding {kernel.function}",
        )
        held = ctypes.c_int()
        _check(_driver().cuFuncGetAttribute(ctypes.byref(held), 1, function), "reading the static shared memory")
        # The most shared memory a block may ask for, less what the function itself holds.
        most = _shared_memory(device) - held.value
        _check(_driver().cuFuncSetAttribute(function, 8, most), "raising the shared memory limit")
    return function


def as_c(argument: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong | ctypes.c_float:
    """The value as cuLaunchKernel takes it."""
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, Long):
        return ctypes.c_longlong(argument)
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)


class Launcher:
    """Launches kernels on the current stream of a device; compiles and loads each at its first use."""

    def multiprocessors(self, device: torch.device) -> int:
        """How many blocks of threads the device runs side by side, at one per multiprocessor."""
        return _multiprocessors(device.index)

    def shared_memory(self, device: torch.device) -> int:
        """How many bytes of shared memory a block of threads may take."""
        return _shared_memory(device.index)

    def prepare(self, device: torch.device, key: Hashable, kernels: Callable[[], Iterable[Kernel]]) -> None:
        """Have kernels compiled by other threads while the device works; once for each key."""
        if (device.index, key) in _prepared:
            return
        _prepared.add((device.index, key))
        architecture = _architecture(device.index)
        for kernel in kernels():
            place = (kernel.source(), architecture)
            if place not in _ahead:
                _ahead[place] = _pool().submit(binary, kernel.source(), kernel.file, architecture)

    def launch(
        self,
        kernel: Kernel,
        device: torch.device,
        grid: tuple[int, int, int],
        threads: int,
        *arguments: Argument,
        shared: int = 0,
    ) -> None:
        """Run a kernel on `grid` blocks of `threads`, with `shared` bytes of dynamic shared memory."""
        function = _function(kernel, device.index)
        values = [as_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        with _context(device.index):
            code = _driver().cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, pointers, None)
        _check(code, f"launching {kernel.function}")


@cache
def _shared_memory(device: int) -> int:
    most = ctypes.c_int()
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(most), 97, device), "reading the shared memory limit")
    return most.value


@cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
