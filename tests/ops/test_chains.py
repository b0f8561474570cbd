"""Multiplication chains and the exponents p is snapped to."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linfnet.ops import snapped_p
from linfnet.ops.chains import SMALLEST_LISTED, addition_chain, is_short, multiplications, power_source

# Lengths of shortest addition chains (OEIS A003313) for n = 1, 2, ...
SHORTEST = [0, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 4, 5, 5, 5, 4, 5, 5, 6, 5, 6, 6, 6, 5, 6, 6, 6, 6, 7, 6, 7, 5]


@pytest.mark.parametrize("n", range(1, 129))
def test_chain_adds_up(n: int) -> None:
    chain = addition_chain(n)
    assert chain[0] == 1
    assert chain[-1] == n
    for place, value in enumerate(chain[1:], 1):
        assert any(value - a in chain[:place] for a in chain[:place])


def test_chains_are_shortest() -> None:
    assert [multiplications(n) for n in range(1, len(SHORTEST) + 1)] == SHORTEST


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_snapping_keeps_order_and_is_idempotent(p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert snapped_p(low) <= snapped_p(high)
    assert snapped_p(snapped_p(p)) == snapped_p(p)


@given(st.floats(1, SMALLEST_LISTED))
def test_snapped_is_the_nearest_short_one(p: float) -> None:
    snapped = snapped_p(p)
    assert is_short(int(snapped))
    assert not any(is_short(n) and abs(n - p) < abs(snapped - p) for n in range(1, SMALLEST_LISTED + 1))


def test_even_numbers_from_22_and_multiples_of_4_from_64() -> None:
    assert sorted({snapped_p(n) for n in range(SMALLEST_LISTED, 65)}) == [float(n) for n in range(22, 65, 2)]
    assert sorted({snapped_p(n) for n in range(64, 129)}) == [float(n) for n in range(64, 129, 4)]


def test_infinity_and_large_p() -> None:
    assert snapped_p(math.inf) == math.inf
    assert snapped_p(101.5) == 100
    assert snapped_p(102.0) == 104
    assert [snapped_p(p) for p in (128.9, 129.0, 254.9, 255.0, 257.9, 258.0, 1000.0)] == [
        *(128, 130, 254, 256, 256, 260, 1000)
    ]


def test_large_p_are_64_to_an_octave() -> None:
    for low in (128, 256, 512):
        assert len({snapped_p(float(p)) for p in range(low, 2 * low)} - {2.0 * low}) == 64


@pytest.mark.parametrize(("n", "signed"), [(n, signed) for n in (0, 1, 2, 7, 8, 27) for signed in (False, True)])
def test_power_source_computes_the_power(n: int, signed: bool) -> None:
    if n == 0 and not signed:
        pytest.skip("no distance has p = 0")
    lines = power_source("f", n, signed=signed).splitlines()[1:-1]
    for d in (-1.25, 0.0, 0.75):
        scope = {"d": d, "fabsf": abs, "copysignf": math.copysign}
        for line in lines[:-1]:
            name, value = line.replace("float", "").rstrip(";").split("=")
            scope[name.strip()] = eval(value, scope)
        value = lines[-1].split("return")[1].rstrip(";")
        if n == 0:
            assert value.strip() == "(d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d)"
            continue
        wanted = abs(d) ** n * (torch.tensor(d).sign().item() if signed else 1)
        assert eval(value, scope) == pytest.approx(wanted)
