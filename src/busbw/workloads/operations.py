"""What one GPU computes, operation by operation, as shapes: a training step is a sum of these and of collectives.

Shapes are those of one rank, after tensor, expert and context parallelism have divided them. Types are named as in the field:
fp32, tf32, bf16, fp16, fp8 (per tensor), fp8_block (a scale a 128 x 128 block), mxfp8, nvfp4.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attention", "Experts", "Gemm", "MemoryBound", "Operation"]


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product (m x k) (k x n), `count` of them one after another."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    count: int = 1
    result_bytes: float = 0.0
    """Read and written an element of the result; 0: written once in the usual type. A gradient that is added to is read and written."""

    @property
    def flops(self) -> float:
        """Multiplications and additions, 2 m n k each time."""
        return 2.0 * self.m * self.n * self.k * self.count


@dataclass(frozen=True, slots=True)
class Attention:
    """Core attention (scores, softmax, weighted sum) of one layer as one fused kernel.

    heads and kv_heads are those of this rank; `window` 0 means none; `v_head_dim` differs from `head_dim` under MLA.
    """

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    causal: bool = True
    window: int = 0
    dtype: str = "bf16"
    backward: bool = False

    @property
    def flops(self) -> float:
        """Useful work: 2 (head_dim + v_head_dim) a visible pair and head forward, 2.5 times that backward (scores computed again)."""
        pairs = _visible_pairs(self.q_len, self.kv_len, self.causal, self.window)
        return (
            2.0 * self.batch * self.heads * pairs * (self.head_dim + self.v_head_dim) * (2.5 if self.backward else 1.0)
        )


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one rank: `experts` products of equal shape, over `rows` token copies in all (tokens x experts a token, those that land here)."""

    rows: int
    hidden: int
    inter: int
    experts: int
    dtype: str = "bf16"
    gated: bool = True
    backward: bool = False

    @property
    def flops(self) -> float:
        """2 h f a row and matrix; three matrices when gated, else two; twice as much backward."""
        return 2.0 * self.rows * self.hidden * self.inter * (3 if self.gated else 2) * (2 if self.backward else 1)


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Work that HBM bounds: norms, activations, residuals, optimizer. `bytes` read and written, in `kernels` launches."""

    bytes: float
    kernels: int = 1


Operation = Gemm | Attention | Experts | MemoryBound


def _visible_pairs(q_len: int, kv_len: int, causal: bool, window: int) -> float:
    """Pairs of query and key that a mask lets through; the queries are the last `q_len` positions of `kv_len`."""
    if not causal:
        return float(q_len) * kv_len
    first = kv_len - q_len
    if not window or window >= kv_len:
        return q_len * (first + 1 + kv_len) / 2
    growing = min(max(window - first, 0), q_len)  # queries that see fewer than `window` keys
    return growing * (first + 1 + first + growing) / 2 + (q_len - growing) * float(window)
