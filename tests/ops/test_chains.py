"""Multiplication chains and the exponents p is snapped to."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.ops import snapped_p
from linfnet.ops.chains import addition_chain, in_quarters, power_source, snapped_after

# Lengths of shortest addition chains (OEIS A003313) for n = 1, 2, ...
SHORTEST = [0, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 4, 5, 5, 5, 4, 5, 5, 6, 5, 6, 6, 6, 5, 6, 6, 6, 6, 7, 6, 7, 5]


SPECIAL = {
    "sqrt_fast": math.sqrt,
    "exp2_fast": lambda a: 2.0**a,
    "log2_fast": lambda a: math.log2(a) if a else -math.inf,
}


@pytest.mark.parametrize("n", range(1, 129))
def test_chain_adds_up(n: int) -> None:
    chain = addition_chain(n)
    assert chain[0] == 1
    assert chain[-1] == n
    for place, value in enumerate(chain[1:], 1):
        assert any(value - a in chain[:place] for a in chain[:place])


def test_chains_are_shortest() -> None:
    assert [len(addition_chain(n)) - 1 for n in range(1, len(SHORTEST) + 1)] == SHORTEST


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_snapping_keeps_order_and_is_idempotent(p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert snapped_p(low) <= snapped_p(high)
    assert snapped_p(snapped_p(p)) == snapped_p(p)


@given(st.floats(8, 1e6))
def test_snapping_moves_p_by_little(p: float) -> None:
    assert abs(snapped_p(p) / p - 1) <= 1 / 64


def test_six_binary_digits_but_no_less_than_quarters() -> None:
    steps = {2: 0.25, 8: 0.25, 16: 0.5, 32: 1.0, 64: 2.0, 128: 4.0, 512: 16.0}
    for low, step in steps.items():
        grid = sorted({snapped_p(low + step * n / 8) for n in range(int(8 * low / step) + 1)})
        assert grid == [low + step * n for n in range(int(low / step) + 1)]
        assert all(snapped_after(p) == q for p, q in itertools.pairwise(grid))
    assert snapped_p(math.inf) == math.inf


def test_of_two_equally_near_the_larger_is_taken() -> None:
    assert [snapped_p(p) for p in (8.12, 8.125, 101.0, 130.0)] == [8.0, 8.25, 102.0, 132.0]


def test_no_p_of_a_snapped_schedule_needs_special_functions_up_to_128() -> None:
    assert all(in_quarters(snapped_p(p / 16)) for p in range(8 * 16, 128 * 16))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 27, 1.25, 8.5, 9.75, 12.25, 10.3])
@pytest.mark.parametrize("signed", [False, True])
def test_power_source_computes_the_power(n: float, signed: bool) -> None:
    if n == 0 and not signed:
        pytest.skip("no distance has p = 0")
    lines = power_source("f", n, signed=signed).splitlines()[1:-1]
    assert any("exp2" in line for line in lines) == (not in_quarters(n))
    for d in (-1.25, 0.0, 0.75):
        scope = {"d": d, "fraction": n - math.floor(n), "fabsf": abs, "copysignf": math.copysign, **SPECIAL}
        for line in lines[:-1]:
            name, value = line.replace("float", "").rstrip(";").split("=")
            scope[name.strip()] = eval(value, scope)
        value = lines[-1].split("return")[1].rstrip(";")
        if n == 0:
            assert value.strip() == "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)"
            continue
        wanted = abs(d) ** n * (torch.tensor(d).sign().item() if signed else 1)
        assert eval(value, scope) == pytest.approx(wanted)
