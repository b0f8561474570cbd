"""Compile CUDA sources with NVRTC and launch kernels through the driver. No other module does either.

Both libraries are called through ctypes: NVRTC is installed with every CUDA build of torch and the driver library with
the driver, so no further package is needed. Compiled kernels are cached in $XDG_CACHE_HOME/linfnet/kernels.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linfnet.errors import LinfnetError
from linfnet.files import replacing

# Folder of the CUDA sources.
SOURCES = Path(__file__).parent / "kernels"
Grid = tuple[int, int, int]

# Numbers are converted to the type that the kernel declares; None becomes a null pointer.
Argument = Tensor | int | float | None
_NUMBERS: dict[str, Any] = {"int": ctypes.c_int, "i64": ctypes.c_longlong, "float": ctypes.c_float}
# Device attributes of the driver.
_MULTIPROCESSORS, _SHARED_MEMORY = 16, 97


class NoKernelsError(LinfnetError):
    """NVRTC or the driver does not work on this machine."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel; `kind` is the declared type without qualifiers, such as `float*`."""

    name: str
    kind: str
    written: bool


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


@dataclass(frozen=True)
class Kernel:
    """One function of a source file, compiled with the given definitions; `power` replaces `#include "power"`."""

    file: str
    function: str
    definitions: tuple[tuple[str, int], ...] = ()
    power: str = ""

    def source(self) -> str:
        """Return the complete source: definitions, then the file with its includes expanded."""
        defined = "".join(f"#define {name} {value}\n" for name, value in self.definitions)
        return defined + _expanded(self.file).replace('#include "power"', self.power)

    @cached_property
    def _declaration(self) -> re.Match[str]:
        bounds = r"__global__ void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?"
        match = re.search(rf"{bounds}{self.function}\(([^)]*)\)", self.source())
        if match is None:
            raise NoKernelsError(f"the source has no kernel {self.function}")
        return match

    @cached_property
    def threads(self) -> int:
        """Threads per block as declared by `__launch_bounds__`, or 0 if not declared."""
        return int(self._declaration[1] or 0)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters that the source declares."""
        parameters: list[Parameter] = []
        for text in self._declaration[2].split(","):
            *kind, name = re.sub(r"\bconst\b|__restrict__", "", text).split()
            parameters.append(Parameter(name, "".join(kind), "*" in text and "const" not in text))
        return parameters

    @cached_property
    def _converters(self) -> tuple[dict[str, Callable[[Any], Any]], type[ctypes.Array[ctypes.c_void_p]]]:
        converters = {one.name: _NUMBERS.get(one.kind, _pointer) for one in self.parameters}
        return converters, ctypes.c_void_p * len(converters)

    def pack(self, arguments: dict[str, Argument]) -> tuple[ctypes.Array[ctypes.c_void_p], list[Any]]:
        """Return the argument array for cuLaunchKernel, and the values it points to, which must outlive it."""
        converters, addresses = self._converters
        if arguments.keys() != converters.keys():
            wrong = ", ".join(sorted(arguments.keys() ^ converters.keys()))
            raise TypeError(f"{self.function}: arguments {wrong} are missing or not declared by the kernel")
        values = [convert(arguments[name]) for name, convert in converters.items()]
        return addresses(*map(ctypes.addressof, values)), values


@cache
def _expanded(file: str) -> str:
    text = (SOURCES / file).read_text(encoding="utf-8")
    return re.sub(r'^#include "(\w+\.cuh)"$', lambda found: _expanded(found[1]), text, flags=re.MULTILINE)


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linfnet" / "kernels"


@cache
def _nvrtc() -> ctypes.CDLL:
    """Load NVRTC in the CUDA version of torch: from the packages that torch installs, otherwise from the system."""
    major = (torch.version.cuda or "13").split(".")[0]
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or []) if package else []
    paths = [str(path) for folder in folders for path in sorted(Path(folder).glob(f"*/lib/libnvrtc.so.{major}*"))]
    for path in (*paths, f"libnvrtc.so.{major}", "libnvrtc.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    raise NoKernelsError("NVRTC was not found in torch's packages or on the library path")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoKernelsError("the CUDA driver library was not found") from error


def _check(code: int, what: str, name: str = "") -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise LinfnetError(f"CUDA: {what}{name} failed: {(text.value or b'error').decode()} ({code})")


def nvrtc_version() -> tuple[int, int]:
    """Return the major and minor version of NVRTC."""
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
    """Return the machine code of a source, from the cache if possible, otherwise compiled."""
    key = hashlib.sha256(f"{source}\0{architecture}\0{nvrtc_version()}".encode()).hexdigest()[:32]
    path = cache_folder() / f"{Path(name).stem}-{architecture}-{key}.cubin"
    with contextlib.suppress(OSError):
        cached = path.read_bytes()
        if cached.startswith(b"\x7fELF"):  # a crash may have left an empty file
            return cached
    code = _compile(source, name, architecture)
    # If the cache cannot be written, the next process compiles again.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(code)
    return code


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="linfnet-nvrtc")
    # `atexit` handlers run after the interpreter has joined all threads, which is too late to cancel queued work.
    at_end: Callable[..., None] = getattr(threading, "_register_atexit", lambda *_, **__: None)
    at_end(pool.shutdown, wait=False, cancel_futures=True)
    return pool


# Compilations started before they are needed, by source and architecture.
_ahead: dict[tuple[str, str], Future[bytes]] = {}
_prepared: set[tuple[int, Hashable]] = set()


def _architecture(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


class _Context:
    """Makes the CUDA context of torch current: a thread that only launches kernels may not have a context."""

    def __init__(self, device: int) -> None:
        torch.cuda.current_stream(device)
        self._context, handle = ctypes.c_void_p(), ctypes.c_int()
        _check(_driver().cuDeviceGet(ctypes.byref(handle), device), "finding the device")
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle), "retaining the context")

    def __enter__(self) -> None:
        _check(_driver().cuCtxPushCurrent_v2(self._context), "making the context current")

    def __exit__(self, *_: object) -> None:
        _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


_context = cache(_Context)


@cache
def _attribute(device: int, number: int) -> int:
    value = ctypes.c_int()
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(value), number, device), "reading an attribute of the device")
    return value.value


@cache
def _function(kernel: Kernel, device: int) -> ctypes.c_void_p:
    source, architecture = kernel.source(), _architecture(device)
    ahead = _ahead.pop((source, architecture), None)
    code = ahead.result() if ahead else binary(source, kernel.file, architecture)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with _context(device):
        _check(_driver().cuModuleLoadData(ctypes.byref(module), code), f"loading {kernel.file}")
        code = _driver().cuModuleGetFunction(ctypes.byref(function), module, kernel.function.encode())
        _check(code, f"finding {kernel.function}")
        static = ctypes.c_int()
        _check(_driver().cuFuncGetAttribute(ctypes.byref(static), 1, function), "reading the static shared memory")
        # Allow as much dynamic shared memory as the static shared memory of the function leaves.
        most = _attribute(device, _SHARED_MEMORY) - static.value
        _check(_driver().cuFuncSetAttribute(function, 8, most), "raising the shared memory limit")
    return function


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Launcher:
    """Launches kernels on the current stream of a device; compiles and loads each kernel at its first launch."""

    def multiprocessors(self, device: torch.device) -> int:
        """Return the number of multiprocessors of the device."""
        return _attribute(device.index, _MULTIPROCESSORS)

    def shared_memory(self, device: torch.device) -> int:
        """Return the bytes of shared memory that a block of threads may use."""
        return _attribute(device.index, _SHARED_MEMORY)

    def prepare(self, device: torch.device, key: Hashable, kernels: Callable[[], Iterable[Kernel]]) -> None:
        """Compile kernels in background threads, once for each key."""
        if (device.index, key) in _prepared:
            return
        _prepared.add((device.index, key))
        architecture = _architecture(device.index)
        for kernel in kernels():
            source = kernel.source()
            if (source, architecture) not in _ahead:
                _ahead[source, architecture] = _pool().submit(binary, source, kernel.file, architecture)

    @contextlib.contextmanager
    def beside(self, device: torch.device) -> Generator[Callable[[], None]]:
        """Launch the kernels of the `with` block on another stream, beside those that follow; yield a function to join.

        The block must not allocate memory. The caller must call the function before it uses or frees the tensors.
        """
        if device.type != "cuda":
            yield lambda: None
            return
        current, side = torch.cuda.current_stream(device), _side_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            yield lambda: current.wait_stream(side)

    def launch(
        self, device: torch.device, kernel: Kernel, grid: Grid, threads: int = 0, shared: int = 0, **arguments: Argument
    ) -> None:
        """Launch a kernel on `grid` blocks; the names of the arguments are those declared in its source.

        `threads` is required if the kernel has no `__launch_bounds__`; `shared` is the dynamic shared memory in bytes.
        """
        function = _function(kernel, device.index)
        addresses, _values = kernel.pack(arguments)
        stream = ctypes.c_void_p(torch.cuda.current_stream(device.index).cuda_stream)
        size = threads or kernel.threads
        with _context(device.index):
            code = _driver().cuLaunchKernel(function, *grid, size, 1, 1, shared, stream, addresses, None)
        _check(code, "launching ", kernel.function)
