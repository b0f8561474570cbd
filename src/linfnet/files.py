"""Read and write files. Every file is written under a temporary name and then renamed, so it is never incomplete."""

import contextlib
import json
import os
import secrets
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
from torch import Tensor

from linfnet.errors import LinfnetError


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Context with a temporary path in the same folder; if the block succeeds, the file there replaces `path` durably.

    If an OSError has no file name, as for a full disk, it is raised again with the name of `path`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise  # the error concerns another file, which the block reads
        if error.errno is None:  # the error was raised by a library
            raise OSError(f"{path}: {error}") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents unless they exist, and return it; failures raise a `LinfnetError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinfnetError(f"output folder {folder} cannot be written: {error.strerror}") from None
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the JSON value of a file, or raise an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LinfnetError(f"{path} does not exist") from None
    except (ValueError, OSError, RecursionError) as error:
        raise LinfnetError(f"{path} is not readable JSON: {str(error).splitlines()[0]}") from None


def read_table(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file as a dictionary, or raise an error that names the file."""
    value: Any = read_json(path)
    if not isinstance(value, dict):
        raise LinfnetError(f"{path} does not contain a JSON object")
    return cast(dict[str, Any], value)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write named tensors as safetensors in one step."""
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # `safetensors.torch.save_file` is not used: for a full disk it raises an exception without errno.
    content = _with_sorted_header(safetensors.torch.save(whole, metadata))
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file whose metadata are sorted: safetensors writes them in random order."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def cut_short(path: Path) -> bool:
    """Return whether a safetensors file is shorter than its header says; the tensors are not read."""
    try:
        with safetensors.safe_open(path, framework="pt"):
            return False
    except safetensors.SafetensorError:
        return True


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the named tensors and the metadata of a safetensors file, or raise an error if it cannot be read."""
    if path.exists() and not os.access(path, os.R_OK):
        raise LinfnetError(f"{path} cannot be read: permission denied")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except FileNotFoundError:
        raise LinfnetError(f"{path} does not exist") from None
    except (safetensors.SafetensorError, OSError, ValueError, struct.error) as error:
        raise LinfnetError(f"{path} is truncated or not a safetensors file ({str(error).splitlines()[0]})") from None
