"""M4 and M7: a cluster of network namespaces, where this machine gives them."""

from __future__ import annotations

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["mini_cluster"]

_HOSTS = 8


def mini_cluster(options: Options) -> Measured:
    """Percent by which the worst simulated time is off; share of pairs of algorithms, told apart by their measured times, that are ranked right."""
    from benchmarks.minicluster.comparing import SIZES, compare
    from benchmarks.minicluster.gloo import COLLECTIVES, gloo_times
    from benchmarks.minicluster.namespaces import HostsRefusedError, MiniCluster

    hosts = 4 if options.smoke else _HOSTS
    sizes = SIZES[:1] if options.smoke else SIZES
    try:
        with MiniCluster(hosts) as cluster:
            found = compare(cluster, sizes)
            peers: dict[str, float | None] = {"closed form, worst %": 100 * found.worst_closed_form_error}
            try:
                gloo = {} if options.smoke else gloo_times(cluster, list(COLLECTIVES), sizes, 2)
            except NotMeasurableError:
                gloo = {}
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
