"""Read pickled batches of CIFAR-10 without Python's unpickler: nothing that the file names is imported or called.

The instructions of a pickle are executed by a small interpreter that knows only what a table of arrays of bytes and
lists needs. A value takes memory in proportion to its instructions, so the whole batch to the size of its file.
"""

import pickletools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from linfnet.errors import LinfnetError

Bytes = npt.NDArray[np.uint8]


_IGNORED = ("PROTO", "FRAME", "STOP")
# Instructions that put a value on the stack, and the value as a function of their argument.
_VALUES: dict[str, Callable[[Any], object]] = {
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), lambda number: number),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), lambda text: text),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), bytes),
    # Written by Python 2.
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), lambda text: text.encode("latin1")),
}


class _Name:
    """A function or class that a pickle names."""

    def __init__(self, call: Callable[..., object]) -> None:
        self.call = call


class _ByteType:
    """Replaces `numpy.dtype`; accepts only unsigned bytes."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in ("u1", b"u1"):
            shown = repr(kind) if isinstance(kind, str | bytes) else type(kind).__name__
            raise LinfnetError(f"it contains an array of type {shown[:40]}; expected unsigned bytes")


class _ByteArray:
    """Replaces `numpy.ndarray`, and the function by which pickles create an empty array."""

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)

    def fill(self, shape: object, content: object, *, column_major: bool) -> None:
        """Set the elements."""
        sizes = list(cast(tuple[object, ...], shape)) if isinstance(shape, tuple) else [None]
        if not isinstance(content, bytes) or not all(type(size) is int for size in sizes):
            raise LinfnetError("it contains an array without a shape or without bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(cast(Any, sizes), order="F" if column_major else "C")


def _from_buffer(content: object, _: object, shape: object, order: object) -> _ByteArray:
    array = _ByteArray()
    array.fill(shape, content, column_major=order == "F")
    return array


class _Interpreter:
    """Executes the instructions of a pickle."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.unencoded = len(content)  # each text in the file is encoded at most once
        self.stack: list[Any] = []
        self.marks: list[int] = []  # the lengths of the stack at each MARK
        self.memo: dict[int, Any] = {}
        self.names: dict[tuple[str, str], _Name] = {
            ("numpy", "ndarray"): _Name(_ByteArray),
            ("numpy.core.multiarray", "_reconstruct"): _Name(_ByteArray),
            ("numpy", "dtype"): _Name(_ByteType),
            ("numpy.core.numeric", "_frombuffer"): _Name(_from_buffer),  # arrays in the newest protocol
            ("_codecs", "encode"): _Name(self._encode),  # bytes that Python 3 wrote in the oldest protocols
        }

    def run(self) -> object:
        """Return the value of the pickle."""
        for instruction, argument, _ in pickletools.genops(self.content):
            name = instruction.name
            if name in _VALUES:
                self.stack.append(_VALUES[name](argument))
            elif not (name in _IGNORED or self._collect(name) or self._refer(name, argument)):
                raise LinfnetError(f"it contains the instruction {name}, which no CIFAR-10 batch needs")
        return self.stack.pop()

    def _collect(self, name: str) -> bool:
        """Execute an instruction that makes or fills a list, tuple or table; return False for others."""
        stack = self.stack
        match name:
            case "MARK":
                self.marks.append(len(stack))
            case "LIST":
                stack.append(self._items())
            case "TUPLE":
                stack.append(tuple(self._items()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack[-int(name[-1]) :] = [tuple(stack[-int(name[-1]) :])]
            case "DICT":
                stack.append(_set({}, self._items()))
            case "APPEND":
                item = stack.pop()
                _typed(stack[-1], list).append(item)
            case "APPENDS":
                items = self._items()
                _typed(stack[-1], list).extend(items)
            case "SETITEM":
                items = [stack.pop(-2), stack.pop()]
                _set(_typed(stack[-1], dict), items)
            case "SETITEMS":
                items = self._items()
                _set(_typed(stack[-1], dict), items)
            case _:
                return False
        return True

    def _refer(self, name: str, argument: Any) -> bool:
        """Execute an instruction that stores or finds a value, or uses a name; return False for others."""
        stack = self.stack
        match name:
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[int(argument)] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self.memo[int(argument)])
            case "GLOBAL":
                stack.append(self._find(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(self._find(stack.pop(-2), stack.pop()))
            case "REDUCE":
                arguments = _typed(stack.pop(), tuple)
                stack.append(_typed(stack.pop(), _Name).call(*arguments))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], state)
            case _:
                return False
        return True

    def _items(self) -> list[Any]:
        """Remove and return the values after the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _find(self, module: object, name: object) -> _Name:
        if isinstance(module, str) and isinstance(name, str):
            if found := self.names.get((module.replace("_core", "core"), name)):
                return found
            shown = f"{module}.{name}"[:80]
            raise LinfnetError(f"it refers to {shown}, which no CIFAR-10 batch needs; it was not loaded")
        raise LinfnetError("it refers to a name that is not text")

    def _encode(self, text: object, _: object) -> bytes:
        if not isinstance(text, str):
            raise LinfnetError(f"it encodes a {type(text).__name__}; expected a text")
        self.unencoded -= len(text)
        if self.unencoded < 0:
            raise LinfnetError("it encodes more text than it contains")
        return text.encode("latin1")


def _typed(value: Any, kind: type[Any]) -> Any:
    """Return a value, or raise an error if it has another type."""
    if type(value) is not kind:
        raise LinfnetError(f"it uses a {type(value).__name__} as a {kind.__name__}")
    return value


def _set(table: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes):  # the hash of another key may take for ever
            raise LinfnetError(f"it has a {type(key).__name__} as a key; expected text")
        table[key] = value
    return table


def _build(value: object, state: Any) -> None:
    """Set the elements of an array. The state of a type, its byte order and fields, is ignored."""
    if isinstance(value, _ByteArray) and isinstance(state, tuple) and len(cast(tuple[Any, ...], state)) == 5:
        _, shape, _, column_major, content = cast(tuple[Any, ...], state)
        value.fill(shape, content, column_major=column_major is True or column_major == 1)
    elif not isinstance(value, _ByteType):
        raise LinfnetError(f"it changes a {type(value).__name__}")


def read_pickle(content: bytes) -> tuple[Bytes, Bytes]:
    """Return the array `data` and the labels [N] of a pickled batch, or raise an error that says what is wrong."""
    try:
        batch = _Interpreter(content).run()
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise LinfnetError(str(error).splitlines()[0][:200] if str(error) else type(error).__name__) from None
    if not isinstance(batch, dict):
        raise LinfnetError(f"it contains a {type(batch).__name__}; expected a dictionary")
    table = cast(dict[str | bytes, Any], batch)
    fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in table.items()}
    data, labels = fields.get("data"), fields.get("labels")
    if not isinstance(data, _ByteArray):
        raise LinfnetError("it has no array 'data'")
    numbers = cast(list[Any], list(labels)) if isinstance(labels, list | tuple) else [None]  # pyright: ignore
    if not all(type(label) is int and 0 <= label < 256 for label in numbers):
        raise LinfnetError("its 'labels' are not a list of numbers from 0 to 255")
    return data.array, np.array(numbers, np.uint8)
