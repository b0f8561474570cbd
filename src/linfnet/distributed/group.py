"""The group of processes that train or evaluate one net, and their collective operations.

`torchrun` starts the processes and sets their ranks. In a single process all operations return their input.
"""

import contextlib
import hashlib
import importlib
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linfnet.errors import ArgumentError, LinfnetError


class _Sum(torch.autograd.Function):
    """Sum over all processes. Every process uses the sum of all inputs, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])


class Group:
    """A group of `size` processes, from the point of view of process `rank`; process 0 writes files."""

    def __init__(self, rank: int = 0, size: int = 1, control: "dist.ProcessGroup | None" = None) -> None:
        self.rank, self.size = rank, size
        self.control = control  # a torch group on the CPU, whose operations do not wait for a GPU

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    def share(self, samples: int) -> slice:
        """Return the slice of the samples for this process; the sizes of all slices differ by at most one.

        >>> [Group(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        least, more = divmod(samples, self.size)
        start = self.rank * least + min(self.rank, more)
        return slice(start, start + least + (self.rank < more))

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes, differentiably."""
        return x if self.size == 1 else cast(Tensor, _Sum.apply(x))

    def sum_(self, x: Tensor) -> Tensor:
        """Replace a tensor by its sum over all processes, in place, and return it."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather(self, mine: Tensor, samples: int) -> Tensor:
        """Return the rows [samples, …] of all processes in order; `mine` contains the rows of `share(samples)`."""
        if self.size == 1:
            return mine
        rows = mine.new_zeros(samples, *mine.shape[1:])
        rows[self.share(samples)] = mine
        return self.sum_(rows)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process; all processes wait for each other here."""
        count = torch.tensor([int(flag)])
        if self.size > 1:
            dist.all_reduce(count, group=self.control)
        return bool(count.item())

    def from_first(self, make: Callable[[], Any]) -> Any:
        """Call `make` in the first process only, and return its value in all processes."""
        values = [make() if self.first else None]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def all(self, mine: Any) -> list[Any]:
        """Return the values of all processes in order of rank; tensors must be on the CPU."""
        values: list[Any] = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(values, mine, group=self.control)
        return values

    def spread_(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of tensors in the first process to all other processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)


ALONE = Group()


class GradientSum:
    """Sum each gradient over all processes as soon as it is computed, while the backward pass continues."""

    def __init__(self, group: Group, parameters: Iterable[nn.Parameter]) -> None:
        self._pending: list[Any] = []
        if group.size > 1:
            for parameter in (each for each in parameters if each.requires_grad):
                parameter.register_post_accumulate_grad_hook(self._begin)

    def _begin(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
            self._pending.append(dist.all_reduce(parameter.grad, async_op=True))

    def wait(self) -> None:
        """Wait for all sums of this backward pass."""
        while self._pending:
            self._pending.pop().wait()


def launched() -> bool:
    """Return whether `torchrun` or a similar launcher started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def restarted() -> bool:
    """Return whether `torchrun` restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def own_device(name: str) -> str:
    """Return the device of this process: for `auto` and `cuda` it is the GPU whose number is the local rank."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= gpus:
        raise ArgumentError(f"local rank {local} has no GPU: this machine has {gpus}; start fewer processes")
    return f"cuda:{local}"


def agree_on_session(store: Any, rank: int, size: int, timeout: float = 600.0) -> str:
    """Wait for all processes and return a new name for their session in a store; it is the same in all processes.

    `torchrun` uses one store for all restarts, so `init_process_group` alone reads the addresses of dead processes and
    fails ("Gloo connectFullMesh failed"). Here each process writes a random token; the hash of all tokens is the name
    of the session. A process that has read all tokens acknowledges the session; dead processes never do.
    """
    # The restart count in the environment is not a name for a session: each agent counts only its own failures.
    deadline = time.monotonic() + timeout
    store.set(f"token/{rank}", uuid.uuid4().hex)
    tokens = [f"token/{each}" for each in range(size)]
    while time.monotonic() < deadline:
        if store.check(tokens):
            session = hashlib.sha256(b"".join(map(store.get, tokens))).hexdigest()
            store.set(f"joined/{session}/{rank}", "1")
            if store.check([f"joined/{session}/{each}" for each in range(size)]):
                return session
        time.sleep(0.02)
    raise LinfnetError(f"the processes cannot be joined: not all {size} started within {timeout:g} s")


def _join(device: torch.device) -> Group:
    """Create two process groups: one for tensors, and one on the CPU for flags and objects."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # Import this now: imported later (by an optimizer), its default arguments would reference the group until exit.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        store, rank, size = next(iter(rendezvous("env://")))
        session = PrefixStore(agree_on_session(PrefixStore("linfnet", store), rank, size), store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=session, rank=rank, world_size=size)
        return Group(rank, size, cast("dist.ProcessGroup", dist.new_group(backend="gloo")))
    except (RuntimeError, ValueError) as error:
        raise LinfnetError(f"the processes cannot be joined: {str(error).splitlines()[0]}") from None


# Parts of the messages of the RuntimeError that Gloo raises if another process died or timed out.
_LOST = ("peer", "/gloo/", "timeout caused pair closure")


@contextlib.contextmanager
def joined(device: torch.device) -> Generator[Group]:
    """Context with the group of processes that `torchrun` started, or `ALONE` without `torchrun`."""
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = _join(device)
    try:
        yield group
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST):
            raise LinfnetError(f"connection to another process was lost: {str(error).splitlines()[0]}") from None
        raise
    finally:
        # Threads of a group that is still referenced continue to run and may abort the process at exit.
        group.control = None
        dist.destroy_process_group()
