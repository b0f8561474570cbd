"""Processes agree on a session, whatever dead ones left in the store."""

import threading
import time
from datetime import timedelta

import pytest

from linfnet.distributed.rendezvous import meet
from linfnet.errors import LinfnetError


class Table(dict[str, str]):
    """A store in this process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def gather(table: Table, delays: list[float]) -> list[str]:
    found = [""] * len(delays)

    def come(rank: int) -> None:
        time.sleep(delays[rank])
        found[rank] = meet(table, rank, len(delays), timedelta(seconds=30))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(len(delays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("delays", [[0.0, 0.0, 0.0], [0.1, 0.0, 0.05], [0.0, 0.1, 0.0]])
def test_all_agree_and_a_restart_gets_a_new_session(delays: list[float]):
    table = Table()
    first, second = gather(table, delays), gather(table, delays[::-1])
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first[0]
    assert first[0] != second[0]


def test_a_process_that_died_before_the_others_came_does_not_count():
    table = Table()
    with pytest.raises(LinfnetError, match="not all 2 came"):
        meet(table, 1, 2, timedelta(seconds=0.05))
    assert len(set(gather(table, [0.0, 0.1]))) == 1  # the first process calls the dead one's token before
    with pytest.raises(LinfnetError, match="not all 2 came"):
        meet(table, 0, 2, timedelta(seconds=0.05))
    assert len(set(gather(table, [0.1, 0.0]))) == 1
