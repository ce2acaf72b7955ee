"""Laws of expressions: simplified or not, on integers or arrays, they mean the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives.expressions import (
    Environment,
    Expr,
    Table,
    affine,
    as_expr,
    ceil_log,
    digit,
    eq,
    evaluate,
    floor_log,
    fold_rank,
    from_gray,
    low_bit,
    maximum,
    minimum,
    negabinary,
    negabinary_digits,
    power,
    select,
    substitute,
    table,
    unfold_rank,
    var,
)
from busbw.collectives.inversion import solve

NAMES = ("x", "y")


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.integers(-9, 9).map(as_expr), st.sampled_from(NAMES).map(var))
    two = [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        minimum,
        maximum,
        eq,
        lambda a, b: a < b,
        lambda a, b: a <= b,
    ]

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(lambda f, a, b: f(a, b), st.sampled_from(two), inner, inner),
            st.builds(lambda a, m: a % m, inner, st.integers(1, 9)),
            st.builds(lambda a, m: a // m, inner, st.integers(1, 9)),
            st.builds(select, inner, inner, inner),
        )

    return st.recursive(leaves, extend, max_leaves=12)


@given(expr=expressions(), x=st.integers(-50, 50), y=st.integers(-50, 50))
def test_replacing_a_variable_by_its_value_changes_no_value(expr: Expr, x: int, y: int):
    env = Environment({"x": x, "y": y})
    assert evaluate(substitute(expr, {var("x"): as_expr(x)}), env) == evaluate(expr, env)
    assert evaluate(substitute(expr, {var("x"): as_expr(x), var("y"): as_expr(y)}), Environment()) == evaluate(
        expr, env
    )


@given(expr=expressions(), xs=st.lists(st.integers(-50, 50), min_size=1, max_size=5), y=st.integers(-50, 50))
def test_arrays_are_evaluated_like_each_of_their_entries(expr: Expr, xs: list[int], y: int):
    together = np.broadcast_to(evaluate(expr, Environment({"x": np.array(xs), "y": y})), len(xs))
    assert together.tolist() == [evaluate(expr, Environment({"x": x, "y": y})) for x in xs]


@given(expr=expressions(), x=st.integers(-9, 9), y=st.integers(-9, 9))
def test_an_affine_form_is_the_expression(expr: Expr, x: int, y: int):
    form = affine(expr, "x")
    if form is not None:
        env = Environment({"x": x, "y": y})
        assert evaluate(form[0] + form[1] * x, env) == evaluate(expr, env)


@given(number=st.integers(-(2**40), 2**40))
def test_base_minus_two(number: int):
    """The digits of a number, weighed by the powers of -2, make it again."""
    digits = evaluate(negabinary_digits(number), Environment())
    assert sum((-2) ** place for place in range(60) if digits >> place & 1) == number
    assert evaluate(negabinary(digits), Environment()) == number


@given(number=st.integers(0, 2**40), base=st.integers(2, 5))
def test_digits_and_logarithms(number: int, base: int):
    digits = [evaluate(digit(number, base, place), Environment()) for place in range(45)]
    assert sum(d * base**place for place, d in enumerate(digits)) == number
    if number:
        up, down = evaluate(ceil_log(base, number), Environment()), evaluate(floor_log(base, number), Environment())
        assert base**down <= number < base ** (down + 1)
        assert base**up >= number and (up == 0 or base ** (up - 1) < number)
        low = evaluate(low_bit(number), Environment())
        assert number % low == 0 and (number // low) % 2 == 1
    code = number ^ number >> 1
    assert evaluate(from_gray(code), Environment()) == number


@given(ranks=st.integers(1, 300))
def test_folded_ranks_are_numbered_without_holes(ranks: int):
    active = 2 ** (ranks.bit_length() - 1)
    names = evaluate(fold_rank(var("x"), ranks), Environment({"x": np.arange(ranks)}))
    assert sorted(names[names >= 0].tolist()) == list(range(active))
    back = evaluate(unfold_rank(var("x"), ranks), Environment({"x": np.arange(active)}))
    assert names[back].tolist() == list(range(active))


def test_tables_wrap_and_are_equal_by_contents():
    env = Environment({"x": np.arange(5)}, tables={"t": np.array([[1, 2], [3, 4]])})
    assert evaluate(table("t", var("x"), 1), env).tolist() == [2, 4, 2, 4, 2]
    assert evaluate(table("t", -1, 3), env) == 4
    assert Table.of([1, 2]) == Table.of(np.array([1, 2])) and hash(Table.of([1])) == hash(Table.of([1]))
    with pytest.raises(ValueError, match="has 2 dimensions and is asked for an entry with 1"):
        evaluate(table("t", 1), env)


@given(p=st.integers(2, 30), shift=st.integers(-40, 40), t=st.integers(0, 40), target=st.integers(0, 29))
def test_the_sender_found_by_form_is_the_one_who_sends(p: int, shift: int, t: int, target: int):
    target %= p
    r, step = var("r"), var("t")
    for expr in (r + shift, r - step, shift - r, step + (r + shift), (r + step) % Expr("size", (), "r")):
        found = solve({"r": expr}, ["r"], {"r": as_expr(target)})
        assert found is not None
        env = Environment({"t": t}, {"r": p})
        sender = evaluate(found["r"], env) % p
        senders = [x for x in range(p) if evaluate(expr, env.having(r=x)) % p == target]
        assert senders == [sender]


def test_what_has_no_inverse_by_form_is_not_solved():
    for expr in (var("r") * 2, var("r") // 2, select(var("r") % 2, 0, 1), var("r") + var("r"), power(2, var("r"))):
        assert solve({"r": expr}, ["r"], {"r": as_expr(0)}) is None


@pytest.mark.parametrize("base", [1, 0, -2])
@pytest.mark.parametrize("log", [ceil_log, floor_log])
def test_a_logarithm_has_a_base_of_at_least_2(base, log):
    """To base 1, 0 or -2 no power ever reaches 5: it is said, not looked for without end. So in arrays."""
    x, b = var("x"), var("b")
    for value in (5, np.array([1, 5])):
        with pytest.raises(ValueError, match=f"a logarithm to base {base} has no value"):
            evaluate(log(b, x), Environment({"x": value, "b": base}))


def test_values_stay_within_64_bits():
    """2^64 is no value, and 2^(10^9) takes no memory; a logarithm of what no array can hold does not go on for ever."""
    for exponent in (64, 10**9):
        with pytest.raises(ValueError, match="has no value here"):
            evaluate(power(2, var("x")), Environment({"x": exponent}))
    assert evaluate(power(1, var("x")), Environment({"x": 10**9})) == 1
    with pytest.raises(ValueError, match="has no value here"):
        evaluate(ceil_log(3, var("x")), Environment({"x": np.array([1 << 62])}))


@pytest.mark.parametrize("divisor", [0, np.array([0]), np.array([3, 0, 1])])
@pytest.mark.parametrize("op", ["div", "mod"])
def test_a_division_by_zero_has_no_value(op: str, divisor):
    """numpy would warn and go on with 0, so that a schedule would mean something else on arrays than on numbers."""
    expr = Expr(op, (var("x"), var("y")))
    for x in (5, np.array([5]), np.array([5, 6, 7])):
        with pytest.raises(ValueError, match="a division by 0 has no value"):
            evaluate(expr, Environment({"x": x, "y": divisor}))


@pytest.mark.parametrize("values", [(3 * 10**9, 3 * 10**9), (np.array([1, 3 * 10**9]), -3 * 10**9)])
def test_a_product_that_does_not_fit_has_no_value(values):
    """9 * 10^18 is more than 2^62; numpy would drop bits."""
    with pytest.raises(ValueError, match="has no value in 63 bits"):
        evaluate(Expr("mul", (var("x"), var("y"))), Environment({"x": values[0], "y": values[1]}))


def test_a_power_that_does_not_fit_has_no_value():
    with pytest.raises(ValueError, match="has no value in 63 bits"):
        evaluate(power(var("x"), 40), Environment({"x": np.array([2, 10**6])}))
    assert evaluate(power(var("x"), 62), Environment({"x": np.array([2, -1])})).tolist() == [1 << 62, 1]


@pytest.mark.parametrize("log", [ceil_log, floor_log])
def test_a_logarithm_to_a_large_base_ends(log):
    """2^61 to base 3.5 * 10^9: base^2 does not fit 64 bits; 2^61 lies between base and base^2."""
    x, base = 1 << 61, 3_500_000_000
    expected = {ceil_log: 2, floor_log: 1}[log]
    assert evaluate(log(base, var("x")), Environment({"x": np.array([x])})).tolist() == [expected]
    assert evaluate(log(base, var("x")), Environment({"x": x})) == expected


def test_a_table_without_entries_has_no_value():
    with pytest.raises(ValueError, match="no entries"):
        evaluate(table("t", var("x")), Environment({"x": np.array([1])}, tables={"t": np.zeros(0, np.int64)}))
