"""Graphs on a CPU: the operations of torch are recorded, and a replay repeats them at the same addresses."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from linfnet.train import cuda_graphs


class RecordedGraph(TorchDispatchMode):
    """Replaces `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Callable[..., Any], Any, dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, output))
        return output

    def pool(self) -> None:
        return None

    @torch.no_grad()
    def replay(self) -> None:
        for function, arguments, options, recorded in self.operations:
            found = function(*arguments, **options)
            olds, news = (each if isinstance(each, tuple | list) else (each,) for each in (recorded, found))
            for old, new in zip(olds, news, strict=True):
                if isinstance(new, torch.Tensor):
                    old.copy_(new)


@contextlib.contextmanager
def _capture(graph: RecordedGraph, pool: object, stream: object) -> Generator[None]:
    with graph:
        yield


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let captures record the operations on a CPU; kernels of this library are not recorded."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(cuda_graphs, "_side_stream", lambda device: None)
    monkeypatch.setattr(cuda_graphs, "_capture", _capture)
