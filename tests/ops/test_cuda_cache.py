"""The cache of compiled kernels: which are read from it and which are compiled again, with a fake compiler."""

from pathlib import Path

import pytest

from linfnet.ops.cuda import nvrtc

SOURCE = "a kernel"
CODE = b"\x7fELF and so on"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Use a separate cache; return the list of compilations."""
    calls: list[tuple[str, str, str]] = []

    def compile_now(source: str, name: str, architecture: str) -> bytes:
        calls.append((source, name, architecture))
        return CODE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", compile_now)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 0))
    return calls


def cached() -> list[Path]:
    return sorted(nvrtc.cache_folder().iterdir())


def test_a_kernel_is_compiled_once(compiled: list[tuple[str, str, str]]) -> None:
    assert [nvrtc.binary(SOURCE, "forward.cu", "sm_90") for _ in range(2)] == [CODE, CODE]
    assert compiled == [(SOURCE, "forward.cu", "sm_90")]
    (path,) = cached()
    assert path.name.startswith("forward-sm_90-")


def test_source_architecture_and_compiler_distinguish_kernels(
    compiled: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for source, architecture in ((SOURCE, "sm_90"), (SOURCE, "sm_80"), ("another", "sm_90")):
        nvrtc.binary(source, "forward.cu", architecture)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (13, 1))
    nvrtc.binary(SOURCE, "forward.cu", "sm_90")
    assert len(compiled) == len(cached()) == 4


@pytest.mark.parametrize("left", [b"", b"<html>"])
def test_a_damaged_file_is_compiled_again(compiled: list[tuple[str, str, str]], left: bytes) -> None:
    nvrtc.binary(SOURCE, "forward.cu", "sm_90")
    (path,) = cached()
    path.write_bytes(left)
    assert nvrtc.binary(SOURCE, "forward.cu", "sm_90") == CODE
    assert path.read_bytes() == CODE
    assert len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    compiled: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [nvrtc.binary(SOURCE, "forward.cu", "sm_90") for _ in range(2)] == [CODE, CODE]
    assert len(compiled) == 2


def test_a_full_disk_leaves_nothing_behind(
    compiled: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert nvrtc.binary(SOURCE, "forward.cu", "sm_90") == CODE
    assert len(compiled) == 1
    assert cached() == []
