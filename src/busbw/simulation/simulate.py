"""Runs a program on a cluster: folded and fast-forwarded unless told otherwise, within limits, with progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from busbw.collectives.plan import Plan
from busbw.collectives.schedule import BoundSchedule
from busbw.errors import InputError
from busbw.hardware.cluster import Cluster
from busbw.hardware.fabrics import Fabric
from busbw.simulation import _flow
from busbw.simulation.conditions import Conditions, find_links
from busbw.simulation.expansion import Expansion, Outage, UnfoldableError, expand
from busbw.simulation.graph import TaskGraph
from busbw.simulation.limits import Limits, Progress, Watch
from busbw.simulation.lowering import task_program
from busbw.simulation.network import Network
from busbw.simulation.plans import plan_program
from busbw.simulation.program import TaskProgram
from busbw.simulation.runtimes import NCCL, Runtime
from busbw.simulation.symmetry import Orbits, orbits_of
from busbw.simulation.timeline import Timeline

__all__ = ["StallError", "simulate"]

_SLICE_EVENTS = 1 << 19
"""Events between looks at the clock, the memory and Ctrl-C: some 50 ms."""
_DONE, _STALLED = 1, 2
_MOST_NAMED = 8


class StallError(InputError):
    """Ranks wait for what will never come; the message names them and what they wait for."""


def simulate(
    program: TaskProgram | Plan | BoundSchedule | TaskGraph,
    cluster: Cluster | Fabric,
    *,
    size_bytes: int | None = None,
    conditions: Conditions | None = None,
    routing: str | None = None,
    seed: int = 0,
    fold: bool = True,
    fast_forward: bool = True,
    record: bool = True,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    runtime: Runtime = NCCL,
) -> Timeline:
    """When everything in a program, a graph, or a plan or schedule that moves size_bytes, happened.

    A cluster's GPUs are the ranks; of a bare fabric the endpoints are. routing: the cluster's own if not given; seed: of
    ECMP. fold: simulate one rank of each set that symmetry makes equal; the result is the same to the picosecond.
    fast_forward: count periods of a steady state instead of repeating them; likewise. record: keep every task.
    runtime: what slots and slices a plan's FIFOs have; NCCL's if not given. A schedule knows none: each of its steps is one message a pair.
    On Ctrl-C, or past a limit, what is known comes back, and `Timeline.stopped` says why; before anything ran, a limit raises InputError.
    Raises StallError where ranks wait for ever, InputError where a link has no capacity or no way leads.
    """
    limits, conditions = limits or Limits(), conditions or Conditions()
    watch = Watch(limits, progress)
    try:
        healthy = Network.of(cluster, routing, seed)
        if isinstance(program, (BoundSchedule, Plan)):
            if size_bytes is None or size_bytes < 0:
                raise ValueError("a schedule or plan needs size_bytes from 0 on, what it shall move")
            if isinstance(program, Plan):
                kind = program.collective
                program = plan_program(program, size_bytes, healthy.outside, runtime, watch)
            else:
                kind, program = program.schedule.kind, task_program(program, size_bytes, watch)
            program = replace(program, notes={**program.notes, "collective": kind, "size_bytes": str(size_bytes)})
        network = conditions.applied_to(healthy)
        outages = tuple(Outage(find_links(network, f.link), f.at_s, f.reroute_s, f.until_s) for f in conditions.later())
        if isinstance(program, TaskGraph):
            if outages or conditions.background or conditions.start_spread_s:
                raise ValueError("graphs run with slow ranks and with links degraded or down from the start, no more")
            program.check()
            program, expansion = program.expand(network, watch, conditions.slowness(network.ranks))
        else:
            program = conditions.added_to(program)
            orbits = orbits_of(network, program, conditions.faulty_gpus(network)) if fold else Orbits(network, ())
            slowness = conditions.slowness(network.ranks)
            try:
                expansion = expand(program, network, orbits, slowness, outages, watch=watch)
            except UnfoldableError:
                expansion = expand(program, network, Orbits(network, ()), slowness, outages, watch=watch)
    except ValueError as error:
        raise InputError(f"{error}") from error
    _refuse_closed_links(expansion, network)
    watch.look(f"{len(expansion.src_rank):,} channels were laid out")
    run = _flow.Run(expansion.program, record=record, fast_forward=fast_forward, most_rows=limits.rows)
    stopped: str | None = None
    status = 0
    try:
        while status == 0:
            status = run.run(_SLICE_EVENTS)
            took = watch.took_s
            if progress is not None:
                progress(Progress(run.now_ps * 1e-12, run.messages + run.messages_skipped, run.events, took))
            if status == 0:
                stopped = limits.over(took)
                if stopped is not None:
                    break
    except KeyboardInterrupt:
        stopped = "interrupted"
    if status == _STALLED:
        raise StallError(_stall(run, expansion, program, network, outages))
    return Timeline.of(run, expansion, program, network, stopped)


def _refuse_closed_links(expansion: Expansion, network: Network) -> None:
    closed = np.flatnonzero(expansion.capacity <= 0)
    if not len(closed):
        return
    used = closed[np.isin(closed, expansion.ways.link)]
    if len(used):
        link = int(expansion.link[used[0]])
        raise InputError(
            f"link {_link_name(link, network)} has no bandwidth, and messages cross it. Give it some, or fail it so that "
            "routes go round it."
        )


def _link_name(link: int, network: Network) -> str:
    return network.link_name(link) if link >= 0 else f"the limit of channel {-1 - link}"


def _stall(
    run: _flow.Run, expansion: Expansion, program: TaskProgram, network: Network, outages: tuple[Outage, ...]
) -> str:
    waits = [wait for wait in run.waits() if not program.streams[int(expansion.stream_name[wait[0]])].background]
    waits.sort(key=lambda wait: wait[3] < 0)  # what stands before a link is the cause, the rest waits for it
    said = []
    for stream, operation, channel, bottleneck in waits[:_MOST_NAMED]:
        rank = network.rank_name(int(expansion.stream_rank[stream]))
        name = program.streams[int(expansion.stream_name[stream])].name
        if channel < 0:
            said.append(f"{rank}, stream {name}, waits for nothing that is under way")
            continue
        which = program.channels[int(expansion.channel_name[channel])].name
        other = network.rank_name(int(expansion.src_rank[channel] if operation == 1 else expansion.dst_rank[channel]))
        what = "for a message from" if operation == 1 else "until it can send to"
        said.append(f"{rank}, stream {name}, waits {what} {other} on channel {which}")
        if bottleneck >= 0 and expansion.capacity[bottleneck] >= 0:
            said[-1] += f", which stands before {_link_name(int(expansion.link[bottleneck]), network)}"
    of = expansion.orbits.order
    more = f" and {len(waits) - _MOST_NAMED} more" if len(waits) > _MOST_NAMED else ""
    stands = f" (each for {of} ranks alike)" if of > 1 else ""
    down = {
        link
        for outage in outages
        if outage.at_s * 1e12 <= run.now_ps and outage.until_s is None
        for link in outage.links
    }
    before = {int(expansion.link[wait[3]]) for wait in waits if wait[3] >= 0}
    if before & down:
        why = "A link is down, and routes never change: say after how long they do (--fail-link LINK@AT+REROUTE), or leave the failure out."
    elif before:
        why = "A message would take longer than the 106 days that the clock has: send fewer bytes, or give the link a higher rate."
    else:
        why = "A message that is waited for is never sent, or ranks wait for each other: send before you receive, or give channels more slots."
    return f"nothing moves any more at {run.now_ps * 1e-6:.3f} us: {'; '.join(said)}{more}{stands}. {why}"
