"""Read and write files. Every file is written under a temporary name and then renamed, so it is never incomplete.

Tables (JSON objects) and tensors (safetensors) are written with a digest of their content, which is checked on reading.
Files without a digest, which older versions wrote, can still be read.
"""

import contextlib
import functools
import glob
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import struct
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
from torch import Tensor

from linfnet.errors import LinfnetError

DIGEST = "digest"
"""The key of the digest in a table, and in the metadata of a safetensors file."""
_SHA256 = "sha256:"
_EMPTY = f"{_SHA256}{64 * '0'}"
_STORED = re.compile(rf'"{DIGEST}":"({_SHA256}[0-9a-f]{{64}})"'.encode())
# A temporary file that has not changed for this time was left by a killed process.
_STALE_SECONDS = 3600


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Context with a temporary path in the same folder; if the block succeeds, the file there replaces `path` durably.

    If an OSError has no file name, as for a full disk, it is raised again with the name of `path`.
    """
    temporary = _temporary(path)
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


@contextlib.contextmanager
def temporary_folder(path: Path) -> Generator[Path]:
    """Context with a new folder next to `path`, which is removed at the end."""
    folder = _temporary(path)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Return a temporary path in the same folder, and remove those of `path` that killed processes have left."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(other) if other.is_dir() else other.unlink()
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


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
    if not os.access(folder, os.W_OK):
        raise LinfnetError(f"output folder {folder} is not writable")
    return folder


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step; halves of surrogate pairs, which UTF-8 cannot encode, are written as escapes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON in one step."""
    write_text(path, _json_text(value))


def _json_text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def check_regular(path: Path) -> None:
    """Raise an error if a path is a device or a pipe: reading it may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise LinfnetError(f"{path} is a device or a pipe; expected a regular file")


def read_json(path: Path) -> Any:
    """Return the JSON value of a file, or raise an error that names the file."""
    check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LinfnetError(f"{path} does not exist") from None
    except (ValueError, OSError, RecursionError) as error:
        raise LinfnetError(f"{path} is not readable JSON: {str(error).splitlines()[0]}") from None


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object with a digest of its values in one step."""
    write_text(path, table_text(table))


def table_text(table: Mapping[str, Any]) -> str:
    """Return the text of a JSON object with a digest of its values."""
    return _json_text({**table, DIGEST: table_digest(table)})


def read_table(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file without its digest; raise an error if it is not readable or does not match."""
    return read_checked_table(path)[0]


def read_checked_table(path: Path) -> tuple[dict[str, Any], bool]:
    """Return the JSON object of a file, and whether it had a digest."""
    value: Any = read_json(path)
    if not isinstance(value, dict):
        raise LinfnetError(f"{path} does not contain a JSON object")
    table = cast(dict[str, Any], value)
    return table, check_table(path, table, table.pop(DIGEST, None), f"key {DIGEST!r}")


def check_table(path: Path, table: Mapping[str, Any], stored: object, where: str) -> bool:
    """Return whether the table of a file has a digest; raise an error that says where it is if it does not match."""
    if stored is None and not _has_digest(table):
        return False
    try:
        matches = stored == table_digest(table)
    except RecursionError:
        matches = False
    if not matches:
        raise LinfnetError(
            f"{path} does not match its digest: it is damaged, or was edited; after an edit, delete its {where}"
        )
    return True


def table_digest(table: Mapping[str, Any]) -> str:
    """Return a digest of the values of a table; it does not depend on the order of the keys."""
    return _SHA256 + hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


def _has_digest(table: Mapping[str, Any]) -> bool:
    """Return whether a value is a digest; if its key is not `DIGEST`, the key is damaged."""
    return any(isinstance(value, str) and value.startswith(_SHA256) for value in table.values())


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write named tensors as safetensors in one step; equal tensors and metadata give equal bytes.

    The metadata begins with a digest of all bytes of the file, for which its own hexadecimal digits are zeros.
    """
    header, content = _parts(tensors, metadata)
    hashed = hashlib.sha256(header)
    hashed.update(content)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(header.replace(_EMPTY.encode(), f"{_SHA256}{hashed.hexdigest()}".encode(), 1))
        file.write(content)


def tensors_size(tensors: dict[str, Tensor], metadata: dict[str, str]) -> int:
    """Return the number of bytes of the file that `write_tensors` writes."""
    return sum(map(len, _parts(tensors, metadata)))


def _parts(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return the header of a safetensors file, with zeros in place of the digest, and the bytes of the tensors."""
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # `safetensors.torch.save_file` is not used: for a full disk it raises an exception without errno. The metadata is
    # added here because safetensors writes it in a random order.
    content = memoryview(safetensors.torch.save(whole))
    start = 8 + int.from_bytes(content[:8], "little")
    about = {DIGEST: _EMPTY, **dict(sorted(metadata.items()))}
    header = json.dumps({"__metadata__": about, **json.loads(bytes(content[8:start]))}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, content[start:]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the named tensors and the metadata of a safetensors file.

    An error is raised if the file cannot be read or does not match its digest; a file without a digest is logged.
    """
    with _opened(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
        if not _check_bytes(path, metadata):
            log_unchecked(f"{path} has no digest: damage would not be noticed")
        metadata.pop(DIGEST, None)
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def check_tensors(path: Path) -> tuple[dict[str, str], bool]:
    """Return the metadata of a safetensors file, and whether it has a digest; raise an error if the file is damaged."""
    with _opened(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
        return metadata, _check_bytes(path, metadata)


def stored_digest(path: Path) -> str:
    """Return the digest in the metadata of a safetensors file, which is not checked; an empty text without one."""
    with _opened(path) as file:
        return (file.metadata() or {}).get(DIGEST, "")


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Any]:
    """Context with an open safetensors file; if it cannot be read, the error names it."""
    check_regular(path)
    if path.exists() and not os.access(path, os.R_OK):
        raise LinfnetError(f"{path} cannot be read: permission denied")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise LinfnetError(f"{path} does not exist") from None
    except (safetensors.SafetensorError, OSError, ValueError, struct.error) as error:
        raise LinfnetError(f"{path} is truncated or not a safetensors file ({str(error).splitlines()[0]})") from None


def _check_bytes(path: Path, metadata: Mapping[str, str]) -> bool:
    """Return whether a safetensors file has a digest; raise an error if it does not match."""
    if DIGEST not in metadata and not _has_digest(metadata):
        return False
    with path.open("rb") as file:
        size = file.read(8)
        header = file.read(int.from_bytes(size, "little"))
        stored = _STORED.search(header)
        hashed = hashlib.sha256(size + (header.replace(stored[1], _EMPTY.encode(), 1) if stored else header))
        hashlib.file_digest(file, lambda: hashed)
    if stored is None or stored[1].decode() != _SHA256 + hashed.hexdigest():
        raise LinfnetError(f"{path} is damaged: it does not match its digest; copy it again")
    return True


@functools.cache
def log_unchecked(message: str) -> None:
    """Log once per process that something was not checked."""
    logging.getLogger("linfnet").warning(message)
