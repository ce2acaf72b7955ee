"""All legal layouts of a job, timed at once; the best simulated, and why the others lost. N layouts.

Layouts are columns from the start: rules of `layout.check` as masks, memory as a mask, the closed form on what is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.workloads.training.calibration import TrainingCalibration
from busbw.workloads.training.columns import Columns, groups
from busbw.workloads.training.frameworks import Framework
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import ORDERS, RECOMPUTE, SCHEDULES, SHARDING, Layout
from busbw.workloads.training.memory import memory
from busbw.workloads.training.network import GroupTimes
from busbw.workloads.training.predict import Steps, predict_steps

__all__ = ["ALIKE", "Search", "Space", "candidates", "legal", "levels", "search"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

ALIKE = 0.005
"""Layouts whose steps differ by less are one choice to us: far below the model's own error."""
_MOST = 4_000_000
_SLICE = 200_000


@dataclass(frozen=True, slots=True)
class Space:
    """What a search varies; None: all that divide."""

    tp: Sequence[int] | None = None
    cp: Sequence[int] | None = None
    pp: Sequence[int] | None = None
    dp: Sequence[int] | None = None
    ep: Sequence[int] | None = None
    vpp: Sequence[int] | None = None
    micro_batch: Sequence[int] | None = None
    recompute: Sequence[str] = ("none", "full")
    sharding: Sequence[str] = ("zero1", "fsdp", "hsdp")
    schedules: Sequence[str] = ("1f1b", "interleaved")
    shard: int | None = None
    """GPUs of a group of hybrid sharding; None: those of an NVLink domain that share weights."""
    order: str = ORDERS[0]
    sp: bool = True
    """Whether tensor parallelism comes with sequence parallelism."""
    framework: Framework | None = None
    """Whose layouts alone are searched; None: any that a framework might have."""


def _divisors(number: int) -> list[int]:
    return (
        [d for d in range(1, number + 1) if number % d == 0]
        if number <= 1 << 16
        else [1 << k for k in range(24) if number % (1 << k) == 0]
    )


def candidates(job: Job, space: Space | None = None) -> Columns:
    """Every layout of the space on all GPUs of the job's cluster that `layout.check` lets pass.

    Sizes whose products exceed the GPUs are never made. Raises InputError for more than a few million.
    """
    space = space or Space()
    model, gpus = job.model, job.cluster.gpus
    tps = [tp for tp in space.tp or _divisors(gpus) if model.heads % tp == 0 and gpus % tp == 0]
    cps = space.cp or [1 << k for k in range(12) if job.seq_len % (2 << k) == 0]
    pps = [pp for pp in space.pp or _divisors(gpus) if pp <= model.layers]
    eps = space.ep or (_divisors(model.experts) if model.is_moe else [1])
    micro = space.micro_batch or [1 << k for k in range(8)]
    heads: list[tuple[int, ...]] = []
    # Stages may be dealt as if embedding, output and further predicted tokens were layers: 94 layers make 96 chunks.
    ends = 2 + model.mtp if space.framework is None or space.framework.deals_ends else 0
    for tp, cp, pp in itertools.product(tps, cps, pps):
        if gpus % (tp * cp * pp):
            continue
        dp = gpus // (tp * cp * pp)
        if job.global_batch % dp or (space.dp and dp not in space.dp):
            continue
        vpps = [1] if "1f1b" in space.schedules and (not space.vpp or 1 in space.vpp) else []
        if pp > 1 and "interleaved" in space.schedules:
            vpps += space.vpp or [
                v
                for v in range(2, (model.layers + ends) // pp + 1)
                if any((model.layers + more) % (pp * v) == 0 for more in range(ends + 1))
            ]
        for ep in eps:
            if tp * cp * dp % ep:
                continue
            for vpp, mb in itertools.product(sorted(set(vpps)), micro):
                if job.global_batch // dp % mb == 0:
                    heads.append((tp, cp, pp, dp, ep, vpp, mb))
        if len(heads) * len(space.recompute) * len(space.sharding) > _MOST:
            raise InputError(f"more than {_MOST:,} layouts. Fix some sizes with --layout, such as tp8.")
    if space.order not in ORDERS:
        raise InputError(f"order {space.order!r} is not known; {' or '.join(ORDERS)}.")
    if not heads:
        return _columns(np.zeros((0, 7), np.int64), np.zeros((0, 2), np.int64))
    ways = np.array(
        [(SHARDING.index(s), RECOMPUTE.index(r)) for s in space.sharding for r in space.recompute], np.int64
    )
    sizes = np.repeat(np.array(heads, np.int64), len(ways), axis=0)
    columns = _columns(sizes, np.tile(ways, (len(heads), 1)))
    # Hybrid sharding keeps a copy of the weights in each NVLink domain: groups of the GPUs there that share weights.
    hybrid = columns.sharding == SHARDING.index("hsdp")
    domain = np.maximum(1, _domain(job) // columns.tp)
    shard = np.where(hybrid, domain if space.shard is None else space.shard, 0)
    sp = ((columns.tp > 1) & space.sp).astype(np.int64)
    columns = replace(columns, shard=shard, sp=sp, order=np.full(len(columns), ORDERS.index(space.order)))
    good = legal(job, columns)
    group = columns.dp * columns.cp
    good &= ~hybrid | ((shard > 1) & (group > shard) & (group % np.maximum(shard, 1) == 0))
    if space.framework is not None:
        good &= space.framework.can(columns)
    return columns.at(np.flatnonzero(good))


def _domain(job: Job) -> int:
    return GroupTimes(job.cluster).domain


def _columns(sizes: IntArray, ways: IntArray) -> Columns:
    tp, cp, pp, dp, ep, vpp, micro = sizes.T
    one, zero = np.ones_like(tp), np.zeros_like(tp)
    schedule = np.where(vpp > 1, SCHEDULES.index("interleaved"), SCHEDULES.index("1f1b"))
    return Columns(
        tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, etp=one, vpp=vpp, sharding=ways[:, 0], shard=zero, sp=(tp > 1).astype(np.int64),
        schedule=schedule, context=zero, order=zero, micro_batch=micro, recompute=ways[:, 1],
    )  # fmt: skip


def legal(job: Job, columns: Columns) -> BoolArray:
    """Which layouts `layout.check` lets pass, (N,); the same rules as masks."""
    model, tp, cp, pp, vpp = job.model, columns.tp, columns.cp, columns.pp, columns.vpp
    m = job.global_batch // (columns.micro_batch * columns.dp)
    good = tp * cp * pp * columns.dp == job.cluster.gpus
    good &= model.heads % tp == 0
    good &= (model.kv_heads % tp == 0) | (tp % model.kv_heads == 0)
    if model.ffn:
        good &= model.ffn % tp == 0
    if model.mamba_heads:
        good &= model.mamba_heads % tp == 0
    good &= (cp == 1) | (job.seq_len % (2 * cp) == 0)
    good &= (tp == 1) | (columns.sp == 0) | (job.seq_len // cp % tp == 0)
    if model.is_moe:
        inner = tp * cp * columns.dp
        good &= (
            (model.experts % columns.ep == 0)
            & (inner % (columns.ep * columns.etp) == 0)
            & (model.moe_ffn % columns.etp == 0)
        )
    else:
        good &= (columns.ep == 1) & (columns.etp == 1)
    good &= pp * vpp <= model.layers + 2 + model.mtp
    good &= (pp > 1) | (vpp == 1)
    interleaved = columns.schedule == SCHEDULES.index("interleaved")
    good &= interleaved == (vpp > 1)
    good &= (columns.schedule != SCHEDULES.index("dualpipe")) | (pp % 2 == 0)
    good &= (columns.sharding != SHARDING.index("zero2")) | (pp == 1)
    good &= (vpp == 1) | (m % pp == 0)
    good &= job.global_batch % (columns.micro_batch * columns.dp) == 0
    return np.asarray(good, np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What a search found: legal layouts, which fit, and their steps."""

    job: Job
    legal: int
    fit: int
    steps: Steps
    """Of those that fit, the fastest first."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """Why the others lost: how many of them by the part of the step in which they fall behind the winner most; memory."""

    def best(self, count: int) -> list[tuple[Layout, int, str, float]]:
        """Layout, micro-batch, recompute and step of the fastest that differ."""
        found = []
        for place in levels(self.steps.total_s)[:count]:
            columns = self.steps.columns
            found.append(
                (
                    columns.layout(place),
                    int(columns.micro_batch[place]),
                    RECOMPUTE[int(columns.recompute[place])],
                    float(self.steps.total_s[place]),
                )
            )
        return found


def levels(total_s: FloatArray) -> list[int]:
    """Of ascending times the places of those that differ by ALIKE from the one kept before.

    >>> levels(np.array([1.0, 1.001, 1.006, 1.2]))
    [0, 2, 3]
    """
    kept: list[int] = []
    last = -math.inf
    for place, value in enumerate(total_s.tolist()):
        if value >= last * (1 + ALIKE) or not kept:
            kept.append(place)
            last = value
    return kept


def search(
    job: Job,
    space: Space | None = None,
    calibration: TrainingCalibration | None = None,
    links: GroupTimes | None = None,
    executor: Executor | None = None,
) -> Search:
    """All legal layouts of a job that fit, the fastest first; timed by the workers of an executor where one is given.

    Raises InputError where none is legal or none fits.
    """
    columns = candidates(job, space)
    if not len(columns):
        what = f"of {job.model.name} on {job.cluster.gpus} GPUs with a global batch of {job.global_batch}"
        if space is not None and len(candidates(job, Space(order=space.order))):
            raise InputError(
                f"no legal layout {what} among those that --layout, --micro-batch and --framework leave; without them there are some. "
                "Fix less, or name another framework."
            )
        raise InputError(f"no legal layout {what}. Change --nodes or --global-batch so that they share factors.")
    fits = np.concatenate([memory(job, columns.at(part)).fits_with_room for part in _slices(len(columns))])
    left = columns.at(np.flatnonzero(fits))
    if not len(left):
        least = min(float(memory(job, columns.at(part)).total.min()) for part in _slices(len(columns)))
        raise InputError(
            f"no layout of {job.model.name} fits: {len(columns)} legal ones need at least {least / 2**30:.0f} GiB a GPU, "
            f"there are {memory(job, columns.at(np.array([0]))).capacity_bytes / 2**30:.0f}. Take more nodes, or a larger GPU."
        )
    steps = _timed(job, left, calibration, links, executor)
    order = np.argsort(steps.total_s, kind="stable")
    parts = {name: part[order] for name, part in steps.times.parts_s.items()}
    ordered = replace(
        steps.times, total_s=steps.total_s[order], parts_s=parts, forward_s=steps.times.forward_s[order],
        backward_s=steps.times.backward_s[order],
    )  # fmt: skip
    found = Steps(job, left.at(order), ordered, steps.low_s[order], steps.high_s[order])
    return Search(job, len(columns), len(left), found, _losses(found, len(columns) - len(left)))


def _timed(
    job: Job,
    columns: Columns,
    calibration: TrainingCalibration | None,
    links: GroupTimes | None,
    executor: Executor | None,
) -> Steps:
    """The steps of layouts; with an executor a task for each tp and cp, which share no tables of operators."""
    if executor is None:
        return predict_steps(job, columns, links, calibration)
    _, kind = groups([columns.tp, columns.cp])
    places = [np.flatnonzero(kind == one) for one in range(int(kind.max()) + 1)]
    asked = [executor.submit(predict_steps, job, columns.at(part), None, calibration) for part in places]
    found = [one.result() for one in asked]
    back = np.argsort(np.concatenate(places), kind="stable")

    def joined(values: Sequence[FloatArray]) -> FloatArray:
        return np.asarray(np.concatenate(list(values))[back])

    times = replace(
        found[0].times,
        total_s=joined([one.times.total_s for one in found]),
        parts_s={name: joined([one.times.parts_s[name] for one in found]) for name in found[0].times.parts_s},
        forward_s=joined([one.times.forward_s for one in found]),
        backward_s=joined([one.times.backward_s for one in found]),
    )
    low, high = joined([one.low_s for one in found]), joined([one.high_s for one in found])
    return Steps(job, columns, times, low, high)


def _slices(count: int) -> list[IntArray]:
    return [np.arange(begin, min(begin + _SLICE, count)) for begin in range(0, count, _SLICE)]


def _losses(steps: Steps, too_large: int) -> dict[str, int]:
    """By part of the step in which a layout is furthest behind the winner."""
    names = list(steps.times.parts_s)
    behind = np.stack([part - part[0] for part in steps.times.parts_s.values()], axis=1)
    slower = steps.total_s >= steps.total_s[0] * (1 + ALIKE)
    worst = np.argmax(behind, axis=1)[slower]
    counted = {name: int((worst == place).sum()) for place, name in enumerate(names)}
    found = {"memory": too_large, **counted}
    return {name: count for name, count in sorted(found.items(), key=lambda one: -one[1]) if count}
