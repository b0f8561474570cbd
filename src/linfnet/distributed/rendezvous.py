"""How processes find each other: a name for their session that all agree upon, also after some were started anew.

`torchrun` may keep one store through all restarts, and processes on other machines do not count restarts alike. What
dead processes left in the store must not be taken for news: each process shows a token of its own, the first one
calls the tokens it sees, and goes ahead once every process has answered to its own.
"""

import json
import time
import uuid
from datetime import timedelta
from typing import Protocol

from linfnet.errors import LinfnetError


class Store(Protocol):
    """The part of `torch.distributed.Store` that is used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


def meet(store: Store, rank: int, size: int, patience: timedelta = timedelta(minutes=10)) -> str:
    """Wait for all processes; the name of their session is new and the same for all of them."""
    deadline = time.monotonic() + patience.total_seconds()
    token = uuid.uuid4().hex
    store.set(f"token/{rank}", token)
    called = ""
    while time.monotonic() < deadline:
        if rank == 0:
            called = _call(store, size, called)
        if session := _answer(store, rank, token):
            return session
        time.sleep(0.02)
    raise LinfnetError(f"the processes cannot be joined: not all {size} came within {patience}")


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _call(store: Store, size: int, called: str) -> str:
    """Call the tokens that are there, if they are not those called before; go ahead if all have answered."""
    tokens = [_read(store, f"token/{rank}") for rank in range(size)]
    if not all(tokens):
        return called
    call = json.dumps(tokens)
    if call != called:
        store.set("call", call)
    session = _name(tokens)
    if all(_read(store, f"answer/{session}/{rank}") for rank in range(size)):
        store.set(f"ahead/{session}", "1")
    return call


def _answer(store: Store, rank: int, token: str) -> str:
    """Answer a call to one's token; the session once the first process has gone ahead with it."""
    call = _read(store, "call")
    tokens: list[str] = json.loads(call) if call else []
    if rank >= len(tokens) or tokens[rank] != token:
        return ""
    session = _name(tokens)
    store.set(f"answer/{session}/{rank}", "1")
    return session if _read(store, f"ahead/{session}") else ""


def _name(tokens: list[str]) -> str:
    return uuid.uuid5(uuid.NAMESPACE_OID, "".join(tokens)).hex
