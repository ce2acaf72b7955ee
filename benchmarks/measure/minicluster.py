"""M4 and M7: a cluster of network namespaces, where this machine gives them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["circle", "mini_cluster"]

_HOSTS = 8


def mini_cluster(options: Options) -> Measured:
    """Percent by which the worst simulated time is off; share of pairs of algorithms, told apart by their measured times, that are ranked right."""
    from benchmarks.minicluster.comparing import SIZES, compare
    from benchmarks.minicluster.gloo import COLLECTIVES, gloo_times
    from benchmarks.minicluster.namespaces import HostsRefusedError, Links, MiniCluster
    from benchmarks.minicluster.predicting import PAIR_SIZES

    hosts = 4 if options.smoke else _HOSTS
    sizes = SIZES[:1] if options.smoke else SIZES
    try:
        with MiniCluster(hosts) as cluster:
            found = compare(cluster, sizes, pair_sizes=PAIR_SIZES[: 2 if options.smoke else None])
            peers: dict[str, float | None] = {"closed form, worst %": 100 * found.worst_closed_form_error}
            try:
                gloo = {} if options.smoke else gloo_times(cluster, list(COLLECTIVES), sizes, 2)
            except NotMeasurableError:
                gloo = {}
        if not options.smoke:
            with MiniCluster(hosts, Links(groups=2)) as cluster:
                grouped = compare(cluster, [1 << 20])
                peers["two groups that share an uplink, worst %"] = 100 * grouped.worst_error
    except HostsRefusedError as error:
        raise NotMeasurableError(str(error)) from None
    if found.wrong:
        raise NotMeasurableError(f"{found.wrong} elements were wrong")
    for (collective, size), times in gloo.items():
        predicted = next(row for row in found.rows if row.name == COLLECTIVES[collective] and row.size_bytes == size)
        peers[f"gloo {collective} {size >> 10} KiB, %"] = 100 * (predicted.predicted.simulated_s / min(times) - 1)
    told, right = found.ranked()
    worst = max(found.rows, key=lambda row: abs(row.error))
    note = f"{len(found.rows)} runs of {hosts} hosts; worst: {worst.name}, {worst.size_bytes >> 10} KiB, {worst.error:+.1%}; {told} pairs told apart"  # fmt: skip
    return Measured([100 * found.worst_error, right / told if told else 1.0], peers, note)


def circle(options: Options) -> Measured:
    """Whether a synthesised all_reduce is legal, right on CPU ranks and hosts, as fast as predicted, and a halved link is named."""
    from benchmarks.minicluster.circle import close_circle
    from benchmarks.minicluster.namespaces import HostsRefusedError, MiniCluster
    from benchmarks.minicluster.predicting import PAIR_SIZES

    hosts, size = (4, 64 << 10) if options.smoke else (_HOSTS, 1 << 20)
    try:
        with MiniCluster(hosts) as cluster, tempfile.TemporaryDirectory() as folder:
            found = close_circle(
                cluster, Path(folder), size_bytes=size, pair_sizes=PAIR_SIZES[: 2 if options.smoke else None]
            )
    except HostsRefusedError as error:
        raise NotMeasurableError(str(error)) from None
    named = found.after.summaries[0] if found.after.summaries else "nothing"
    peers: dict[str, float | None] = {
        "measured ms": found.healthy.best_s * 1e3,
        "predicted ms": found.predicted_s * 1e3,
        "simulated ms": found.simulated_s * 1e3,
        "measured ms, link halved": found.halved.best_s * 1e3,
        "simulated ms, link halved": found.simulated_halved_s * 1e3,
    }
    return Measured(
        found.holds,
        peers,
        f"{found.candidate.name}, {hosts} hosts, {size >> 10} KiB: {found.error:.1%} off; before: {found.before.summaries or 'nothing'}; found: {named}",
    )
