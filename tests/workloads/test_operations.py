"""The shapes of what a GPU computes, and the work in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.workloads.operations import Attention, Experts, Gemm


@given(q_len=st.integers(1, 40), more=st.integers(0, 40), window=st.integers(0, 90))
def test_attention_counts_the_pairs_that_the_mask_lets_through(q_len: int, more: int, window: int) -> None:
    """Query i of the last q_len positions sees the keys up to itself, at most `window` of them."""
    kv_len = q_len + more
    positions = range(more, kv_len)
    pairs = sum(min(position + 1, window) if window else position + 1 for position in positions)
    operation = Attention(
        batch=3, q_len=q_len, kv_len=kv_len, heads=5, kv_heads=5, head_dim=7, v_head_dim=11, window=window
    )
    assert operation.flops == pytest.approx(3 * 5 * pairs * 2 * (7 + 11))


def test_a_layer_of_experts_is_the_sum_of_its_products() -> None:
    """A gated expert is two products in and one out; each row goes through one expert, whatever their number."""
    rows, hidden, inter = 96, 64, 128
    products = 2 * Gemm(rows, inter, hidden).flops + Gemm(rows, hidden, inter).flops
    assert Experts(rows=rows, hidden=hidden, inter=inter, experts=8).flops == pytest.approx(products)
    assert Experts(rows=rows, hidden=hidden, inter=inter, experts=8, backward=True).flops == pytest.approx(2 * products)
