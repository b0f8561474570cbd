"""Processes agree on a session, also when the store contains keys of dead processes."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from linfnet.distributed.rendezvous import agree_on_session
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
        sessions[rank] = agree_on_session(table, rank, len(delays), timedelta(seconds=30))

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
        agree_on_session(table, rank, 2, timedelta(seconds=0.05))
    delays = [0.0, 0.0]
    delays[rank] = 0.1  # the other process reads the token of the dead one first
    assert len(set(start_all(table, delays))) == 1


WORKER = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from linfnet.distributed.group import joined
if sys.argv[1] == "plain":
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dist.barrier()
else:
    with joined(torch.device("cpu")) as group:
        assert group.any(group.rank == 1)
"""


@pytest.mark.parametrize("kind", ["plain", "joined"])
def test_a_second_round_over_the_same_store(processes: None, kind: str):
    """`torchrun` keeps its store after a restart. If the plain call succeeds one day, rendezvous.py can be deleted."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    environment = {**os.environ, **address, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    failed = []
    for _ in range(2):
        started = []
        for rank in (1, 0):  # in the second round, rank 1 reads the address of the first round's rank 0
            command = [sys.executable, "-c", WORKER, kind]
            settings = {**environment, "RANK": str(rank)}
            started.append(subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True))
            time.sleep(1.0 if rank else 0.0)
        errors = [process.communicate(timeout=120)[1] for process in started]
        failed.append(any(process.returncode for process in started))
    assert failed == [False, kind == "plain"], errors
    if kind == "plain":
        assert any("Gloo connectFullMesh failed" in error for error in errors), errors
