"""A process that decodes pictures, with a time limit after which it is ended and replaced."""

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from typing import IO

import numpy as np
import torch
from starlette.exceptions import HTTPException
from torch import Tensor

from linfnet.data import to_pixels
from linfnet.data.jpeg import MAX_SCANS, count_scans
from linfnet.serve import decode
from linfnet.serve.schemas import Fit

DECODE_SECONDS = 2.0
START_SECONDS = 60.0
# Pictures of at most so many pixels, times their scans, take less than 0.1 s.
SMALL_WORK = 2_000_000


def check_scans(body: bytes) -> None:
    """Raise 400 if a JPEG has too many scans, before it occupies the process that decodes."""
    scans = count_scans(body)
    if scans > MAX_SCANS:
        raise HTTPException(400, f"the JPEG file has {scans:,} scans; expected at most {MAX_SCANS}")


def to_tensor(array: np.ndarray) -> Tensor:
    """Return bytes [H, W] or [H, W, 3] as float32 pixels [C, H, W] in [0, 1]."""
    pixels = to_pixels(torch.tensor(array), 255)
    return pixels.unsqueeze(0) if array.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


class Decoder:
    """A process that decodes one picture at a time; it is started by `start` or by the first picture.

    `max_work` is the largest work of a picture that it decodes, its pixels times its scans.
    """

    def __init__(self, max_work: int | None = None) -> None:
        self.max_work = max_work
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            # -P: the folder of the script is not searched for modules. A new session: Ctrl-C is for the server only.
            command = [sys.executable, "-P", decode.__file__]
            pipe, environment = subprocess.PIPE, {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            self._ready = False
            self._end = weakref.finalize(self, _end, self._process)
        return self._process

    def read(self, body: bytes, shape: tuple[int, int, int], fit: Fit) -> Tensor:
        """Return pixels [C, H, W] of the net's shape; raise an HTTPException if the picture cannot be used.

        Raises `decode.CostlyPictureError` for a picture of more work than `max_work`.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if not self._ready:
                with _ended_after(START_SECONDS, process):
                    _line(process.stdout)
                self._ready = True
            with _ended_after(DECODE_SECONDS, process):
                request = [len(body), shape, fit, self.max_work, count_scans(body)]
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.write(body)
                process.stdin.flush()
                result, reason = json.loads(_line(process.stdout))
                if result is None:
                    raise decode.CostlyPictureError(reason)
                if reason is not None:
                    raise HTTPException(result, reason)
                array = np.frombuffer(process.stdout.read(math.prod(result)), dtype=np.uint8).reshape(result)
        except (EOFError, OSError, ValueError):  # the process has ended
            self._end()
            self.start()
            raise HTTPException(400, f"the picture cannot be decoded within {DECODE_SECONDS:g} s") from None
        return to_tensor(array)


def _line(source: IO[bytes]) -> bytes:
    line = source.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


@contextlib.contextmanager
def _ended_after(seconds: float, process: subprocess.Popen[bytes]) -> Generator[None]:
    """Context that ends the process after some seconds; a pipe that is read then ends."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
