"""Random sets in every file format, and a web server to fetch them from."""

import contextlib
import gzip
import io
import json
import pickle
import struct
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]


def idx_bytes(array: Bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def old_pickle(rows: Bytes, labels: Bytes) -> bytes:
    """A batch as Python 2 and an old NumPy wrote it, like the published files."""

    def text(content: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(content)) + content

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR"
    array += b"(" + number(1) + b"(" + b"".join(map(number, rows.shape)) + b"t" + kind + b"\x89" + text(rows.tobytes())
    array += b"tb"
    label_list = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + label_list + b"u."


def new_pickle(rows: Bytes, labels: Bytes) -> bytes:
    return pickle.dumps({b"data": rows, b"labels": labels.tolist(), b"filenames": [b"a.png"]}, protocol=4)


@dataclass(frozen=True)
class Sample:
    """A random set: for each split, images uint8 [N, C, H, W] and labels uint8 [N]."""

    arrays: dict[str, tuple[Bytes, Bytes]]

    def idx_files(self, ending: str) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for part, (images, labels) in zip(("train", "t10k"), self.arrays.values(), strict=True):
            files[f"{part}-images-idx3-ubyte"] = idx_bytes(images[:, 0])
            files[f"{part}-labels-idx1-ubyte"] = idx_bytes(labels)
        return {name + ending: gzip.compress(data) if ending else data for name, data in files.items()}

    def _batches(self) -> dict[str, tuple[Bytes, Bytes]]:
        (images, labels), test = self.arrays["train"], self.arrays["test"]
        parts = zip(np.array_split(images, 5), np.array_split(labels, 5), strict=True)
        return {f"data_batch_{number}": part for number, part in enumerate(parts, 1)} | {"test_batch": test}

    def python_files(self, write: Callable[[Bytes, Bytes], bytes] = old_pickle) -> dict[str, bytes]:
        return {name: write(x.reshape(len(x), -1), y) for name, (x, y) in self._batches().items()}

    def binary_files(self) -> dict[str, bytes]:
        return {
            f"{name}.bin": b"".join(bytes([label]) + image.tobytes() for image, label in zip(x, y, strict=True))
            for name, (x, y) in self._batches().items()
        }

    def png_files(self) -> dict[str, bytes]:
        files = {f"{split}_lables.json": json.dumps(y.tolist()).encode() for split, (_, y) in self.arrays.items()}
        for name, (x, _) in self._batches().items():
            buffer = io.BytesIO()
            Image.fromarray(x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)).save(buffer, "PNG")
            files[f"{name}.png"] = buffer.getvalue()
        return files


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tar_bytes(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


class Served:
    """A web server on this machine that serves `files` without their last `withheld` bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.withheld = 0
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = served.files.get(self.path)
                if data is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # an interrupted client closes the connection
                    self.wfile.write(data[: len(data) - served.withheld])

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()
