"""Multiplication chains and the values to which p is snapped."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.ops import snapped_p
from linfnet.ops.powers import PowerMode, addition_chain, power_mode, power_source, snapped_after

# Lengths of shortest addition chains (OEIS A003313) for n = 1, 2, ...
SHORTEST = [0, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 4, 5, 5, 5, 4, 5, 5, 6, 5, 6, 6, 6, 5, 6, 6, 6, 6, 7, 6, 7, 5]


SPECIAL = {
    "exp2_fast": lambda a: 2.0**a,
    "log2_fast": lambda a: math.log2(a) if a else -math.inf,
}


@pytest.mark.parametrize("n", range(1, 129))
def test_chain_adds_up(n: int) -> None:
    chain = addition_chain(n)
    assert chain[0] == 1
    assert chain[-1] == n
    for index, value in enumerate(chain[1:], 1):
        assert any(value - a in chain[:index] for a in chain[:index])


def test_chains_are_shortest() -> None:
    assert [len(addition_chain(n)) - 1 for n in range(1, len(SHORTEST) + 1)] == SHORTEST


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_snapping_keeps_order_and_is_idempotent(p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert snapped_p(low) <= snapped_p(high)
    assert snapped_p(snapped_p(p)) == snapped_p(p)


@given(st.floats(22, 1e6))
def test_snapping_moves_p_by_little(p: float) -> None:
    assert abs(snapped_p(p) / p - 1) <= 1 / 22


def test_even_numbers_from_8_multiples_of_4_from_64_and_64_to_an_octave_from_128() -> None:
    steps = {2: 1.0, 4: 1.0, 8: 2.0, 16: 2.0, 32: 2.0, 64: 4.0, 128: 2.0, 256: 4.0, 512: 8.0}
    for low, step in steps.items():
        grid = sorted({snapped_p(low + step * n / 8) for n in range(int(8 * low / step) + 1)})
        assert grid == [low + step * n for n in range(int(low / step) + 1)]
        assert all(snapped_after(p) == q for p, q in itertools.pairwise(grid))
    assert snapped_p(math.inf) == math.inf


def test_of_two_equally_near_the_larger_is_taken() -> None:
    assert [snapped_p(p) for p in (8.99, 9.0, 102.0, 129.0)] == [8.0, 10.0, 104.0, 130.0]


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 27, 1.25, 8.5, 10.3])
@pytest.mark.parametrize("signed", [False, True])
def test_power_source_computes_the_power(n: float, signed: bool) -> None:
    if n == 0 and not signed:
        pytest.skip("no distance has p = 0")
    lines = power_source("f", n, signed=signed).splitlines()[1:-1]
    assert any("exp2" in line for line in lines) == (n != int(n))
    for d in (-1.25, 0.0, 0.75):
        scope = {"d": d, "special": n - math.floor(n), "fabsf": abs, "copysignf": math.copysign, **SPECIAL}
        for line in lines[:-1]:
            name, value = line.replace("float", "").rstrip(";").split("=")
            scope[name.strip()] = eval(value, scope)
        value = lines[-1].split("return")[1].rstrip(";")
        if n == 0:
            assert value.strip() == "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)"
            continue
        wanted = abs(d) ** n * (torch.tensor(d).sign().item() if signed else 1)
        assert eval(value, scope) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("mode", "exponents"),
    [
        (PowerMode.SCALE_PER_OUTPUT, (1.0, 8.0, 64.0)),
        (PowerMode.SCALE_PER_PAIR, (65.0, 68.0, 128.0)),
        (PowerMode.LOG_RATIO, (8.5, 127.5)),
        (PowerMode.LOG_RATIO_LARGE, (128.5, 130.0, 1e6)),
    ],
)
def test_the_mode_depends_on_p(mode: PowerMode, exponents: tuple[float, ...]) -> None:
    assert {power_mode(p) for p in exponents} == {mode}


def test_an_exponent_is_rounded_as_the_argument_of_its_kernel() -> None:
    """In float32 the exponent is 3."""
    assert power_source("f", 3 - 1e-9, signed=True) == power_source("f", 3, signed=True)
