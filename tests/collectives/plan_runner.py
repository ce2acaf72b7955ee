"""Runs a plan on numbers: FIFOs of one slot, blocks taken in turn. Small and slow; the tests' own second opinion of what a plan does."""

from __future__ import annotations

from collections import deque

import numpy as np

from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan


class DeadlockError(AssertionError):
    """Every block waits."""


def run_plan(plan: Plan, inputs: np.ndarray, slots: int = 1) -> np.ndarray:
    """The output of every rank, (ranks, output chunks), one number a chunk. inputs: (ranks, input chunks). In place: input and output alias."""
    ranks = [plan.rank(r).unrolled() for r in range(plan.ranks)]
    memory = []
    for r, rank in enumerate(ranks):
        given = np.array(inputs[r, : rank.input_chunks], float)
        out = np.full(rank.output_chunks, np.nan)
        if plan.in_place:
            each = min(len(given), len(out))
            if plan.collective == "all_gather":
                out[r * each : (r + 1) * each] = given
                given = out[r * each : (r + 1) * each]
            elif plan.collective == "reduce_scatter":
                out = given[r * each : (r + 1) * each]
            else:
                out[:] = given
                given = out
        memory.append({Buffer.INPUT: given, Buffer.OUTPUT: out, Buffer.SCRATCH: np.full(rank.scratch_chunks, np.nan)})
    fifos: dict[tuple[int, int, int], deque] = {}
    signals: dict[tuple[int, ...], int] = {}
    semaphores = {(r, s): value for r, rank in enumerate(ranks) for s, value in enumerate(rank.semaphores)}
    flags = {(r, b): 0 for r, rank in enumerate(ranks) for b in range(len(rank.blocks))}
    blocks = [(r, b, *_operations(rank.rows(b))) for r, rank in enumerate(ranks) for b in range(len(rank.blocks))]
    places = dict.fromkeys([(r, b) for r, b, *_ in blocks], 0)

    def fifo(r: int, via: int) -> deque:
        c = ranks[r].connections[via]
        ends = (r, int(c["peer"])) if c["kind"] == ConnectionKind.FIFO_OUT else (int(c["peer"]), r)
        assert c["kind"] in (ConnectionKind.FIFO_OUT, ConnectionKind.FIFO_IN)
        return fifos.setdefault((int(c["channel"]), *ends), deque())

    def place(r: int, row: np.void, side: str) -> slice:
        assert 0 <= row[side] <= row[side] + row["count"] <= len(memory[r][Buffer(row[f"{side}_buffer"])]), row
        return slice(row[side], row[side] + row["count"])

    def way(r: int, row: np.void, out: bool) -> tuple[int, ...]:
        c = ranks[r].connections[row["via"]]
        ends = (r, int(c["peer"])) if out else (int(c["peer"]), r)
        return (int(c["kind"]), int(c["channel"]), *ends)

    def attempt(r: int, b: int, rows: list[np.void]) -> bool:
        row, op, mine = rows[0], Op(rows[0]["op"]), memory[r]
        if op is Op.SEND:
            queue = fifo(r, row["via"])
            if len(queue) >= slots:
                return False
            queue.append(mine[Buffer(row["src_buffer"])][place(r, row, "src")].copy())
        elif op in (Op.RECV, Op.RECV_REDUCE_COPY):
            queue = fifo(r, row["via"])
            if not queue:
                return False
            got = queue.popleft()
            assert len(got) == row["count"], "a receive counts other chunks than its send"
            if op is Op.RECV_REDUCE_COPY:
                got = got + mine[Buffer(row["src_buffer"])][place(r, row, "src")]
            mine[Buffer(row["dst_buffer"])][place(r, row, "dst")] = got
        elif op is Op.COPY:
            mine[Buffer(row["dst_buffer"])][place(r, row, "dst")] = mine[Buffer(row["src_buffer"])][place(r, row, "src")].copy()  # fmt: skip
        elif op is Op.REDUCE:
            value = sum(
                mine[Buffer(x["src_buffer"])][place(r, x, "src")] for x in rows if x["src_buffer"] != Buffer.NONE
            )
            for x in rows:
                if x["dst_buffer"] != Buffer.NONE:
                    owner = r if x["via"] < 0 else int(ranks[r].connections[x["via"]]["peer"])
                    memory[owner][Buffer(x["dst_buffer"])][place(owner, x, "dst")] = value
        elif op in (Op.PUT, Op.PUT_SIGNAL_FLUSH):
            for x in rows:
                peer = int(ranks[r].connections[x["via"]]["peer"])
                memory[peer][Buffer(x["dst_buffer"])][place(peer, x, "dst")] = mine[Buffer(x["src_buffer"])][place(r, x, "src")]  # fmt: skip
                if op is Op.PUT_SIGNAL_FLUSH:
                    signals[way(r, x, True)] = signals.get(way(r, x, True), 0) + 1
        elif op is Op.SIGNAL:
            for x in rows:
                signals[way(r, x, True)] = signals.get(way(r, x, True), 0) + 1
        elif op is Op.WAIT:
            ways = [way(r, x, False) for x in rows]
            if any(not signals.get(one) for one in ways):
                return False
            for one in ways:
                signals[one] -= 1
        elif op is Op.SYNC:
            return True
        elif op is Op.RELEASE:
            for x in rows:
                semaphores[r, int(x["via"])] += 1
        elif op is Op.ACQUIRE:
            if any(not semaphores[r, int(x["via"])] for x in rows):
                return False
            for x in rows:
                semaphores[r, int(x["via"])] -= 1
        elif op is Op.FLAG_SET:
            flags[r, b] += 1
        elif op is Op.FLAG_WAIT:
            return flags[r, int(row["via"])] >= row["src"]
        elif op in (Op.MULTICAST, Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST):
            group = ranks[r].groups[ranks[r].connections[row["via"]]["peer"]].ranks
            if op is Op.MULTICAST:
                value = mine[Buffer(row["src_buffer"])][place(r, row, "src")].copy()
            else:
                value = sum(memory[q][Buffer(row["src_buffer"])][place(q, row, "src")].copy() for q in group)
            for q in [r] if op is Op.GROUP_REDUCE else group:
                memory[q][Buffer(row["dst_buffer"])][place(q, row, "dst")] = value
        else:
            raise AssertionError(f"lowering made a {op.name}, which this runner does not know: teach it here")
        return True

    while True:
        moved = False
        for r, b, operations in blocks:
            while places[r, b] < len(operations) and attempt(r, b, operations[places[r, b]]):
                places[r, b] += 1
                moved = True
        if all(places[r, b] == len(operations) for r, b, operations in blocks):
            break
        if not moved:
            stuck = [(r, b, Op(ops[places[r, b]][0]["op"]).name) for r, b, ops in blocks if places[r, b] < len(ops)]
            raise DeadlockError(stuck[:8])
    assert not any(fifos.values()), "messages are left over"
    assert not any(signals.values()), "signals are left over"
    longest = max(len(m[Buffer.OUTPUT]) for m in memory)
    return np.stack(
        [np.pad(m[Buffer.OUTPUT], (0, longest - len(m[Buffer.OUTPUT])), constant_values=np.nan) for m in memory]
    )


def _operations(rows: np.ndarray) -> tuple[list[list[np.void]]]:
    found: list[list[np.void]] = []
    for row in rows:
        if row["op"] == Op.OPERAND:
            found[-1].append(row)
        else:
            found.append([row])
    return (found,)


def expected_output(kind: str, inputs: np.ndarray, root: int = 0) -> np.ndarray:
    """What the collective promises for these inputs; NaN where it promises nothing. From MPI's definitions."""
    p, n = inputs.shape
    total = inputs.sum(0)
    nothing = np.full((p, n), np.nan)
    if kind == "all_reduce":
        return np.tile(total, (p, 1))
    if kind == "reduce_scatter":
        return total.reshape(p, n // p)
    if kind == "all_gather":
        return np.tile(inputs.ravel(), (p, 1))
    if kind == "broadcast":
        return np.tile(inputs[root], (p, 1))
    if kind == "reduce":
        nothing[root] = total
        return nothing
    if kind == "scatter":
        return inputs[root].reshape(p, n // p)
    if kind == "gather":
        found = np.full((p, n * p), np.nan)
        found[root] = inputs.ravel()
        return found
    if kind == "all_to_all":
        return inputs.reshape(p, p, n // p).transpose(1, 0, 2).reshape(p, n)
    if kind == "send_recv":
        return np.roll(inputs, 1, axis=0)
    raise AssertionError(f"what {kind} must give is not said here")


def expected_all_to_all_v(counts: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Row d: what every rank s has for d, in order of s. NaN beyond."""
    found = np.full((len(counts), max(counts.sum(0).max(), 0)), np.nan)
    for d in range(len(counts)):
        pieces = [inputs[s, counts[s, :d].sum() : counts[s, : d + 1].sum()] for s in range(len(counts))]
        found[d, : counts[:, d].sum()] = np.concatenate(pieces)
    return found


def check_plan(plan: Plan) -> None:
    """Runs the plan on large random numbers, so that no wrong sum looks right, and compares."""
    each = max(plan.rank(r).input_chunks for r in range(plan.ranks))
    rng = np.random.default_rng(plan.ranks)
    inputs = rng.integers(1, 1 << 40, size=(plan.ranks, each)).astype(float)
    got = run_plan(plan, inputs)
    if plan.counts is not None:
        wanted = expected_all_to_all_v(plan.counts, inputs)
    else:
        wanted = expected_output(plan.collective, inputs, plan.root)
    asked = ~np.isnan(wanted)
    np.testing.assert_array_equal(got[asked], wanted[asked])
