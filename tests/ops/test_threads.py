"""The threads of the CPU kernels: bits, forks, several callers, sleeping threads, threads that do not run.

Every test runs a script in a new process, because threads live as long as their process. It is run twice: as a program
that sets nothing, which uses the threads of torch or the pool, and like the command line, which uses the pool.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from linfnet.cli.start import WAIT_SETTINGS, set_wait_policy
from linfnet.ops import cpu

pytestmark = [pytest.mark.process, pytest.mark.skipif(not cpu.levels(), reason="the extension is not built")]

SETUP = """
import math, os, random, sys, threading, time
import torch
from linfnet.ops import cpu, lp_distance

torch.set_num_threads(1)

def use(threads):
    cpu.threads_for = lambda *_: threads() if callable(threads) else threads

def results(shape, p, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n, out, features = shape
    x, w, grad = (torch.randn(size, generator=generator) for size in ((n, features), (out, features), (n, out)))
    x.requires_grad_(), w.requires_grad_()
    y = lp_distance(x, w, p, impl="cpu")
    return [y.detach(), *torch.autograd.grad(y, (x, w), grad)]

def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
"""


Run = Callable[[str], None]


@pytest.fixture(params=["default", "passive"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a script, with the default wait policy of OpenMP or the passive one."""
    environment = {key: value for key, value in os.environ.items() if key not in WAIT_SETTINGS}
    if request.param == "passive":
        set_wait_policy(environment)

    def run_script(script: str) -> None:
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SETUP + script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    return run_script


def test_callers_in_several_threads_and_forked_processes(run: Run) -> None:
    """Random numbers of threads, three callers at once, and a process that is forked while they compute."""
    run("""
use(1)
cases = [((70, 67, 40), 8.0), ((40, 100, 70), math.inf), ((33, 40, 200), 30.5)]
wanted = [results(*case) for case in cases]
use(lambda: random.randint(1, 6))
failures = []

def call(seed, rounds):
    chance = random.Random(seed)
    for _ in range(rounds):
        i = chance.randrange(len(cases))
        if not same(results(*cases[i]), wanted[i]):
            failures.append(cases[i])

def child():
    call(1, 20)
    threads = [threading.Thread(target=call, args=(seed, 10)) for seed in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return len(failures)

callers = [threading.Thread(target=call, args=(seed, 300)) for seed in range(3)]
for caller in callers: caller.start()
children = []
for _ in range(4):
    call(2, 20)
    pid = os.fork()
    if pid == 0:
        os._exit(child())
    children.append(pid)
for caller in callers: caller.join()
statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert statuses == [0] * 4, statuses
assert not failures, failures
""")


def test_idle_threads_sleep(run: Run) -> None:
    """The process uses no CPU time between two calls, although it has seven more threads."""
    run("""
use(8)
results((128, 128, 128), 8.0)
time.sleep(0.05)
before = time.process_time()
time.sleep(0.5)
spent = time.process_time() - before
assert spent < 0.05, spent
""")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs the scheduling policies of Linux")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_a_call_does_not_wait_for_a_thread_that_does_not_run(run: Run) -> None:
    """The second thread has lower priority than a busy loop on its core, so it runs a few milliseconds per second.

    Once in a while it begins a piece and is stopped, so a few calls may be slow; other tests use the cores as well.
    One of three rounds must be fast: without the pool, all are slow.
    """
    run("""
cores = sorted(os.sched_getaffinity(0))
if len(cores) < 2:
    sys.exit(0)
before = set(os.listdir("/proc/self/task"))
use(2)
results((64, 64, 64), 8.0)
started = [int(task) for task in set(os.listdir("/proc/self/task")) - before]
assert started
loop = os.fork()
if loop == 0:
    os.sched_setaffinity(0, {cores[1]})
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass
    os._exit(0)
try:
    for task in started:
        os.sched_setaffinity(task, {cores[1]})
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {cores[0]})
    x, w = torch.randn(64, 128), torch.randn(128, 128)
    rounds = []
    while len(rounds) < 3 and not any(both < 3 * alone for alone, both in rounds):
        seconds = {1: [], 2: []}
        for _ in range(50):
            for threads, times in seconds.items():
                use(threads)
                start = time.perf_counter()
                for _ in range(5):
                    lp_distance(x, w, 30.5, impl="cpu")
                times.append(time.perf_counter() - start)
        rounds.append(tuple(sorted(times)[40] for times in seconds.values()))
    assert any(both < 3 * alone for alone, both in rounds), rounds
finally:
    os.kill(loop, 9)
""")


def test_threads_treat_subnormal_numbers_like_the_caller(run: Run) -> None:
    """Threads inherit the switch when they are started; the pool must use the switch of each call instead."""
    run("""
if not torch.set_flush_denormal(True):
    sys.exit(0)
use(4)
results((128, 128, 128), 8.0)
torch.set_flush_denormal(False)
x, w = torch.randn(256, 64) * 1e-40, torch.randn(256, 64) * 1e-40
many = [lp_distance(x, w, math.inf, impl="cpu") for _ in range(50)]
use(1)
alone = lp_distance(x, w, math.inf, impl="cpu")
assert alone.any()
assert all(torch.equal(y, alone) for y in many)
""")


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({}, "those of torch, or a pool"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "threads: a pool"),
        # Threads of the pool would all be bound to the core of the thread that starts them.
        ({"OMP_WAIT_POLICY": "passive", "OMP_PROC_BIND": "close"}, "those of torch, or a pool"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems may have no OpenMP")
def test_which_threads_are_used(variables: dict[str, str], used: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in WAIT_SETTINGS} | variables
    script = SETUP + "use(2)\nresults((64, 64, 64), 8.0)\nprint(cpu.status())"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert used in done.stdout


def test_small_layers_take_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert [cpu.threads_for(n, 128, 128) for n in (1, 64, 128, 192, 10_000)] == [1, 1, 2, 3, 4]
        torch.set_num_threads(1)
        assert cpu.threads_for(10_000, 128, 128) == 1
    finally:
        torch.set_num_threads(before)
