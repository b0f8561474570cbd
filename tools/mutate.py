"""Plant bugs in a copy of the package, one at a time, and report which of them the tests do not see.

    python -m tools.mutate [NAME ...] [--room ROOM] [--kernels] [--jobs N] [--record records/mutants.json]

The bugs are listed in tools/mutants/ROOM.toml: the file in src/linfnet, a text that occurs in it once, the text that
replaces it, the tests that should fail, and what is wrong. A bug that changes no result has a line `equivalent` with
the reason. Bugs in the C++ kernels are planted only with --kernels, which needs CMake and nanobind. Each of N jobs has
a copy of the package.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "tools", "docs", "records", "examples", "benchmarks", "pyproject.toml", "CMakeLists.txt")
SECONDS = 180.0
# Each run of the tests is a fork of this process, which has already imported the slow packages, but not linfnet.
SLOW_IMPORTS = ("numpy", "torch")
# An installed package in development mode is found before the copy, unless its finder is removed.
SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
"""


@dataclass(frozen=True)
class Mutant:
    """A planted bug."""

    name: str
    file: str
    """The path in src/linfnet."""
    old: str
    new: str
    tests: list[str]
    """Arguments of pytest."""
    wrong: str
    """What is wrong with the new text."""
    equivalent: str = ""
    """Why no test can see the bug; empty for a bug that changes a result."""

    @property
    def is_kernel(self) -> bool:
        """Whether the bug is in the C++ code."""
        return not self.file.endswith(".py")

    def path(self, root: Path) -> Path:
        """Return the path of the file."""
        return root / "src" / "linfnet" / self.file

    def apply(self, root: Path) -> str:
        """Return the text of the file with the bug, or raise an error if the old text does not occur once."""
        text = self.path(root).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise LookupError(f"{self.name}: the text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)


def read_mutants(room: str = "*") -> list[Mutant]:
    """Return the planted bugs of tools/mutants/ROOM.toml, or of all rooms."""
    entries: list[dict[str, Any]] = []
    for path in sorted((ROOT / "tools" / "mutants").glob(f"{room}.toml")):
        entries += tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**entry) for entry in entries]


def copy_tree(target: Path) -> None:
    """Copy the package, its kernels and the tests."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)
    (target / "sitecustomize.py").write_text(SITE)
    # If the package is installed, its kernels are in another folder. This process does not import linfnet.
    find = "import linfnet.ops._cpu as kernels; print(kernels.__file__)"
    found = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        shutil.copy2(found.stdout.strip(), target / "src" / "linfnet" / "ops")


@contextlib.contextmanager
def planted(mutant: Mutant, root: Path) -> Generator[None]:
    """Context in which a copy of the package has a bug."""
    path = mutant.path(root)
    before, changed = path.read_text(encoding="utf-8"), mutant.apply(root)
    try:
        _write(path, changed)
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    """Write a file with another time of change in seconds, by which Python and Ninja find what is compiled."""
    later = max(time.time(), int(path.stat().st_mtime) + 1)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (later, later))


def run_tests(root: Path, tests: Sequence[str], seconds: float, log: Path) -> int | None:
    """Run tests in a copy of the package; return the exit code of pytest, or None after the time limit."""
    process = multiprocessing.get_context("fork").Process(target=_pytest, args=(root, tests, log))
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that its tests started
        process.join()
        return None
    return process.exitcode


def _pytest(root: Path, tests: Sequence[str], log: Path) -> None:
    os.setsid()
    os.chdir(root)
    os.environ["PYTHONPATH"] = f"{root}{os.pathsep}{root / 'src'}"
    exec(SITE)
    sys.path[:] = [str(root / "src"), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.split(".")[0] in ("linfnet", "tools")]:
        del sys.modules[name]
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def build_kernels(root: Path) -> None:
    """Compile the CPU kernels of a copy of the package."""
    folder = root / "build-kernels"
    if not folder.exists():
        found = subprocess.run([sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True)
        options = [f"-DPython_EXECUTABLE={sys.executable}"]
        options += [f"-Dnanobind_DIR={found.stdout.strip()}"] if found.returncode == 0 else []
        _call(["cmake", "-S", str(root), "-B", str(folder), *options])
    _call(["cmake", "--build", str(folder), "--parallel", "2"])
    for library in folder.glob("_cpu*.so"):
        shutil.copy2(library, root / "src" / "linfnet" / "ops")


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def outcome(mutant: Mutant, root: Path, seconds: float) -> str:
    """Plant a bug and return `seen`, `survived`, `time limit`, `text not found`, or what pytest could not run."""
    try:
        with planted(mutant, root):
            if mutant.is_kernel:
                build_kernels(root)
            code = run_tests(root, mutant.tests, seconds, root / "log")
    except LookupError:
        return "text not found"
    # 2: a module of the tests could not be imported.
    return {None: "time limit", 0: "survived", 1: "seen", 2: "seen"}.get(code, f"pytest ended with {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description="plant bugs in a copy of the package and run the tests")
    parser.add_argument("names", nargs="*", help="names of bugs, or beginnings of names; by default all")
    parser.add_argument("--room", default="*", help="only the bugs of tools/mutants/ROOM.toml")
    parser.add_argument("--kernels", action="store_true", help="also bugs in the C++ kernels, which are compiled")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of bugs at the same time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of the tests of one bug")
    parser.add_argument("--record", type=Path, help="write the outcomes to this file")
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in read_mutants(options.room)
        if (options.kernels or not mutant.is_kernel) and mutant.name.startswith(tuple(options.names) or ("",))
    ]
    chosen.sort(key=lambda mutant: mutant.is_kernel)
    if not chosen:
        sys.exit("no bug has such a name")
    for package in SLOW_IMPORTS:
        importlib.import_module(package)
    with tempfile.TemporaryDirectory(prefix="linfnet-mutate-") as folder:
        outcomes = _run_all(chosen, Path(folder), options.seconds, max(1, min(options.jobs, len(chosen))))
    seen = {name for name, found in outcomes.items() if found in ("seen", "time limit")}
    equivalent = {mutant.name: mutant.equivalent for mutant in chosen if mutant.equivalent}
    real = [mutant for mutant in chosen if not mutant.equivalent]
    survivors = [mutant for mutant in real if mutant.name not in seen]
    for mutant in survivors:
        print(f"{outcomes[mutant.name]}: {mutant.name} ({mutant.file}): {mutant.wrong}")
    for name in sorted(seen & equivalent.keys()):
        print(f"seen, although it is listed as equivalent: {name}")
    share = 1 - len(survivors) / len(real) if real else 1.0
    print(f"{len(real) - len(survivors)} of {len(real)} bugs are seen ({100 * share:.1f} %)")
    if options.record:
        from linfnet.files import write_json
        from linfnet.train.run_folder import environment

        table = {"what": "bugs planted in the package, one at a time, and whether the tests named for each see it"}
        table |= {"bugs": len(real), "seen": len(real) - len(survivors), "share_seen": round(share, 4)}
        table |= {"survivors": [mutant.name for mutant in survivors], "equivalent": equivalent, "outcomes": outcomes}
        write_json(options.record, {**table, "environment": environment()})
    if survivors or seen & equivalent.keys():
        sys.exit(1)


def _run_all(chosen: Sequence[Mutant], folder: Path, seconds: float, jobs: int) -> dict[str, str]:
    fork = multiprocessing.get_context("fork")
    roots: multiprocessing.SimpleQueue[Path] = fork.SimpleQueue()
    for job in range(jobs):
        root = folder / str(job)
        root.mkdir()
        copy_tree(root)
        roots.put(root)
    if any(mutant.is_kernel for mutant in chosen):  # an error must not come after all other bugs
        build_kernels(folder / "0")
    log, tests = folder / "log", sorted({test for mutant in chosen for test in mutant.tests})
    print(f"running the tests of {len(chosen)} bugs without a bug …", flush=True)
    if run_tests(folder / "0", tests, seconds * len(chosen), log) != 0:
        sys.exit(f"the tests fail without a bug:\n{log.read_text()[-5000:]}")
    with ProcessPoolExecutor(jobs, mp_context=fork, initializer=_take_root, initargs=(roots,)) as pool:
        running = {pool.submit(_timed_outcome, mutant, seconds): mutant.name for mutant in chosen}
        for number, future in enumerate(as_completed(running), 1):
            result, took = future.result()
            print(f"{number:4} of {len(chosen)}  {result:10}  {running[future]}  {took:.0f} s", flush=True)
    return {name: future.result()[0] for future, name in running.items()}


def _take_root(roots: "multiprocessing.SimpleQueue[Path]") -> None:
    global _root
    _root = roots.get()


_root = Path()
"""The copy of the package that belongs to this process of the pool."""


def _timed_outcome(mutant: Mutant, seconds: float) -> tuple[str, float]:
    start = time.monotonic()
    return outcome(mutant, _root, seconds), time.monotonic() - start


if __name__ == "__main__":
    main()
