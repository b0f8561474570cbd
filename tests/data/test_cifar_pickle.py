import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from samples import Bytes, old_pickle

from linfnet.data.cifar_pickle import read_python_batch
from linfnet.errors import LinfnetError

ROWS = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
LABELS = np.array([7, 0, 9], np.uint8)


def dump(data: object, labels: object = (7, 0, 9), protocol: int = 4) -> bytes:
    return pickle.dumps({"data": data, "labels": labels}, protocol=protocol)


def read(tmp_path: Path, content: bytes) -> tuple[Bytes, Bytes]:
    (tmp_path / "batch").write_bytes(content)
    return read_python_batch(tmp_path / "batch")


@pytest.mark.parametrize(
    "content",
    [old_pickle(ROWS, LABELS), *(dump(ROWS, [7, 0, 9], protocol) for protocol in range(6))],
    ids=["python2", *(f"protocol{number}" for number in range(6))],
)
def test_round_trip(tmp_path: Path, content: bytes) -> None:
    rows, labels = read(tmp_path, content)
    assert rows.dtype == labels.dtype == np.uint8
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_column_major_arrays(tmp_path: Path, protocol: int) -> None:
    rows, _ = read(tmp_path, dump(np.asfortranarray(ROWS), protocol=protocol))
    assert np.array_equal(rows, ROWS)


class Evil:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "trap"
    content = pickle.dumps({"data": ROWS, "labels": [Evil(os.mkdir, str(trap))]}, protocol=protocol)
    with pytest.raises(
        LinfnetError, match=r"batch is not a python batch of CIFAR-10: it asks for \w+\.mkdir, which no"
    ):
        read(tmp_path, content)
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists(), "the pickle was harmless: the test above proves nothing"


@pytest.mark.parametrize("call", [eval, getattr, np.load, np.frombuffer, __import__])
def test_no_other_name_is_allowed(tmp_path: Path, call: Callable[..., object]) -> None:
    with pytest.raises(LinfnetError, match="it asks for "):
        read(tmp_path, pickle.dumps(Evil(call, "1")))


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match=r"it holds an array of type b?'O8'; wanted unsigned bytes"):
        read(tmp_path, dump(np.array([{}, []], dtype=object)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "EOFError"),
        (b"not a pickle", "not a python batch"),
        (old_pickle(ROWS, LABELS)[:-2000], "not a python batch"),
        (pickle.dumps([1, 2]), "AttributeError"),
        (pickle.dumps({"labels": [1]}), "KeyError: 'data'"),
        (dump(ROWS, [7, 0, 999]), "OverflowError"),
        (dump(ROWS, [7, 0]), "holds images [3, 3072] and labels [2]; wanted [N, 3072] and [N]"),
        (dump(ROWS[:, :784]), "holds images [3, 784]"),
        (dump(ROWS[0], [7]), "holds images [3072]"),
    ],
    ids=range(9),
)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(LinfnetError) as caught:
        read(tmp_path, content)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LinfnetError, match="batch cannot be read: No such file"):
        read_python_batch(tmp_path / "batch")
