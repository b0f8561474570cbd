"""Several processes that train one net: who this one is, and the few things that all of them do together.

`torchrun` starts the processes and tells each its place; alone, every operation here leaves things as they are.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linfnet.distributed.rendezvous import meet
from linfnet.errors import ArgumentError, LinfnetError


class _Sum(torch.autograd.Function):
    """The sum over all processes; each of them depends on every input, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


class Ranks:
    """Process `rank` of `size`; the first one writes files."""

    def __init__(self, rank: int = 0, size: int = 1, control: "dist.ProcessGroup | None" = None) -> None:
        self.rank, self.size = rank, size
        self._control = control  # on the CPU: asking it does not wait for a GPU

    @property
    def first(self) -> bool:
        """Whether this process writes the files and speaks to the user."""
        return self.rank == 0

    def share(self, samples: int) -> slice:
        """This process's part of so many samples: together they cover all, none twice, sizes differ by one at most.

        >>> [Ranks(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        least, more = divmod(samples, self.size)
        start = self.rank * least + min(self.rank, more)
        return slice(start, start + least + (self.rank < more))

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, differentiable."""
        return x if self.size == 1 else cast(Tensor, _Sum.apply(x))

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather(self, mine: Tensor, samples: int) -> Tensor:
        """Rows [samples, …] of all processes in order, each having those of its `share`."""
        if self.size == 1:
            return mine
        rows = mine.new_zeros(samples, *mine.shape[1:])
        rows[self.share(samples)] = mine
        return self.sum_(rows)

    def any(self, flag: bool) -> bool:
        """Whether it holds for one of the processes; all wait for each other here."""
        if self.size == 1:
            return flag
        asked = torch.tensor([int(flag)])
        dist.all_reduce(asked, group=self._control)
        return bool(asked.item())

    def from_first(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, on all of them."""
        found = [make() if self.first else None]
        if self.size > 1:
            dist.broadcast_object_list(found, src=0, group=self._control)
        return found[0]

    def all(self, mine: Any) -> list[Any]:
        """What every process has, in order; tensors must lie on the CPU."""
        found: list[Any] = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(found, mine, group=self._control)
        return found

    def spread_(self, tensors: Iterable[Tensor]) -> None:
        """Give the first process's values to all."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def leave(self) -> None:
        """Let go of the others: nothing can be asked of them any more."""
        self._control = None


ALONE = Ranks()


class GradientSum:
    """Sums each gradient over all processes as soon as it is known, while the backward pass goes on."""

    def __init__(self, ranks: Ranks, parameters: Iterable[nn.Parameter]) -> None:
        self._under_way: list[Any] = []
        if ranks.size > 1:
            for parameter in (each for each in parameters if each.requires_grad):
                parameter.register_post_accumulate_grad_hook(self._begin)

    def _begin(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
            self._under_way.append(dist.all_reduce(parameter.grad, async_op=True))

    def wait(self) -> None:
        """Until all sums of this backward pass are there."""
        for work in self._under_way:
            work.wait()
        self._under_way.clear()


def launched() -> bool:
    """Whether `torchrun` (or the like) started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def restarted() -> bool:
    """Whether `torchrun` started this process anew, after another one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def own_device(name: str) -> str:
    """The device of this process among those of its machine: the GPU of its local number, for `auto` and `cuda`."""
    if name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    place, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= gpus:
        raise ArgumentError(f"process {place} of this machine has no GPU of its own: there are {gpus}; start fewer")
    return f"cuda:{place}"


def _join(device: torch.device) -> Ranks:
    """Open the groups: one for tensors, and one on the CPU for questions."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # Imported later, by an optimizer, its default arguments would hold the group to the end of the process.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        store, rank, size = next(iter(rendezvous("env://")))
        session = PrefixStore(meet(PrefixStore("linfnet", store), rank, size), store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=session, rank=rank, world_size=size)
        return Ranks(rank, size, cast("dist.ProcessGroup", dist.new_group(backend="gloo")))
    except (RuntimeError, ValueError) as error:
        raise LinfnetError(f"the processes cannot be joined: {str(error).splitlines()[0]}") from None


# What Gloo says of a process that has died, or that has not answered for too long: it has no errors of its own.
_LOST = ("peer", "/gloo/", "timeout caused pair closure")


@contextlib.contextmanager
def joined(device: torch.device) -> Generator[Ranks]:
    """The processes that `torchrun` started, joined for the length of a block; alone if it did not."""
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = _join(device)
    try:
        yield ranks
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST):
            raise LinfnetError(f"contact to another process was lost: {str(error).splitlines()[0]}") from None
        raise
    finally:
        # A group that somebody still holds keeps its threads, which may abort the process at its end.
        ranks.leave()
        dist.destroy_process_group()
