"""Processes agree on a session, also when the store contains keys of dead processes."""

import os
import subprocess
import sys
import threading
import time

import pytest
from torch.distributed import TCPStore

from linfnet.distributed.group import agree_on_session
from linfnet.errors import LinfnetError


class Table(dict[str, str]):
    """A store in this process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def start_all(table: Table, delays: list[float]) -> list[str]:
    sessions = [""] * len(delays)

    def start(rank: int) -> None:
        time.sleep(delays[rank])
        sessions[rank] = agree_on_session(table, rank, len(delays), timeout=30)

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(len(delays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sessions


@pytest.mark.parametrize("delays", [[0.0, 0.0, 0.0], [0.1, 0.0, 0.05], [0.0, 0.1, 0.0]])
def test_all_agree_and_a_restart_gets_a_new_session(delays: list[float]):
    table = Table()
    first, second = start_all(table, delays), start_all(table, delays[::-1])
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first[0]
    assert first[0] != second[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_died_before_the_others_started_does_not_count(rank: int):
    table = Table()
    with pytest.raises(LinfnetError, match="not all 2 started within"):
        agree_on_session(table, rank, 2, timeout=0.05)
    delays = [0.0, 0.0]
    delays[rank] = 0.1  # the other process reads the token of the dead one first
    assert len(set(start_all(table, delays))) == 1


# Gloo sometimes waits forever for the dead process instead of raising an error.
PLAIN = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""
JOINED = """
import torch
from linfnet.distributed.group import joined
with joined(torch.device("cpu")) as group:
    assert group.any(group.rank == 1)
"""


def test_a_restart_over_the_same_store(processes: None):
    """`torchrun` keeps its store after a restart. If torch waits for rank 0 one day, delete `agree_on_session`."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    environment = {**os.environ, **address, "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def run(script: str, *ranks: int) -> tuple[list[int], str]:
        started = []
        for rank in ranks:
            settings = {**environment, "RANK": str(rank)}
            command = [sys.executable, "-c", script]
            started.append(subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True))
        errors = "".join(process.communicate(timeout=120)[1] for process in started)
        return [process.returncode for process in started], errors

    codes, errors = run(PLAIN, 0, 1)
    assert codes == [0, 0], errors
    # The new rank 1 does not wait for the new rank 0: it reads the address of the old one.
    codes, errors = run(PLAIN, 1)
    assert codes == [1], errors
    assert "in init_process_group" in errors
    codes, errors = run(JOINED, 0, 1)
    assert codes == [0, 0], errors
