"""A session name that all processes agree on, new after each restart.

`torchrun` keeps one TCP store through all restarts (torch 2.13: `DynamicRendezvousHandler` caches it, and
`env://` adds no prefix per attempt), so plain `init_process_group` reads the addresses of dead processes and fails with
"Gloo connectFullMesh failed … Connection refused", also with a single agent. The count of restarts in the environment
cannot serve as a prefix: each agent counts only the failures of its own workers, so agents disagree.

Here each process writes a random token under its rank. The tokens of all ranks name a session, and each process
acknowledges the session that it reads. A session with all acknowledgements has only living members.
"""

import hashlib
import time
import uuid
from datetime import timedelta
from typing import Protocol

from linfnet.errors import LinfnetError


class Store(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


def agree_on_session(store: Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=10)) -> str:
    """Wait for all processes and return the name of their session: new, and the same for all of them."""
    deadline = time.monotonic() + timeout.total_seconds()
    store.set(f"token/{rank}", uuid.uuid4().hex)
    tokens = [f"token/{each}" for each in range(size)]
    while time.monotonic() < deadline:
        if store.check(tokens):
            session = hashlib.sha256(b"".join(map(store.get, tokens))).hexdigest()
            store.set(f"joined/{session}/{rank}", "1")
            if store.check([f"joined/{session}/{each}" for each in range(size)]):
                return session
        time.sleep(0.02)
    raise LinfnetError(f"the processes cannot be joined: not all {size} started within {timeout}")
