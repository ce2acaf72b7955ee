"""`python -m benchmarks.minicluster`: starts the hosts, runs the algorithms and shows what they took beside what was predicted.

Exits with 2, and says why, where this machine gives no network namespaces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.minicluster.circle import close_circle
from benchmarks.minicluster.comparing import SIZES, Compared, Comparison, compare
from benchmarks.minicluster.gloo import COLLECTIVES, gloo_times
from benchmarks.minicluster.namespaces import HostsRefusedError, Links, MiniCluster
from benchmarks.minicluster.predicting import cluster_yaml
from benchmarks.rows import NotMeasurableError
from busbw.units import format_bytes, parse_size


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the arguments ask for; the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minicluster", description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=8, help="2 to 16")
    parser.add_argument("--mbit", type=float, default=50.0, help="of every host's link, each way")
    parser.add_argument("--groups", type=int, default=1, help="of hosts, each on a switch of its own")
    parser.add_argument("--uplink", type=float, default=50.0, metavar="MBIT", help="between groups, each way")
    parser.add_argument("--bytes", nargs="+", default=[str(size) for size in SIZES], metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--gloo", action="store_true", help="also torch.distributed's gloo, where it is installed")
    parser.add_argument(
        "--circle",
        type=Path,
        metavar="DIR",
        help="instead: make a schedule, run it, halve a link, explain; what was measured is left in DIR",
    )
    parser.add_argument("--yaml", type=Path, metavar="FILE", help="write the cluster for `busbw design --cluster FILE`")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw measured and simulated times")
    given = parser.parse_args(arguments)
    try:
        sizes = [parse_size(text) for text in given.bytes]
        if min(sizes) < 4 or given.repeats < 1:
            raise ValueError("sizes begin at 4 bytes, repeats at 1")
        with MiniCluster(
            given.hosts, Links(given.mbit, groups=given.groups, uplink_mbit_per_s=given.uplink)
        ) as cluster:
            if given.groups > 1 and (given.circle is not None or given.yaml is not None):
                raise ValueError(
                    "--circle and --yaml are for one group: a cluster file says no other fabric of this kind"
                )
            if given.circle is not None:
                return 0 if close_circle(cluster, given.circle, say=print).holds else 1
            print(f"{'algorithm':22}{'size':>10}{'measured ms':>13}{'simulated ms':>14}{'':>8}{'closed form ms':>16}{'':>8}")  # fmt: skip
            found = compare(cluster, sizes, repeats=given.repeats, say=_say)
            _summary(found)
            if given.yaml is not None:
                given.yaml.write_text(cluster_yaml(given.hosts, found.line))
            if given.figure is not None:
                from benchmarks.minicluster.figure import drawn

                given.figure.write_text(drawn(found, f"{given.hosts} hosts, {given.mbit:g} Mbit/s"))
            if given.gloo:
                _gloo(cluster, found, sizes, given.repeats)
    except (HostsRefusedError, NotMeasurableError, ValueError) as error:
        print(f"benchmarks.minicluster: {error}", file=sys.stderr)
        return 2
    return 1 if found.wrong else 0


def _say(row: Compared) -> None:
    simulated, form = row.predicted.simulated_s * 1e3, row.predicted.closed_form_s * 1e3
    print(
        f"{row.name:22}{format_bytes(row.size_bytes):>10}{row.timed.best_s * 1e3:13.1f}{simulated:14.1f}{row.error:+8.1%}{form:16.1f}{row.closed_form_error:+8.1%}",
        flush=True,
    )


def _summary(found: Comparison) -> None:
    told, right = found.ranked()
    rate = found.line.bytes_per_s / 1e6
    print(f"\none pair: {rate:.3f} MB/s each way, {found.line.alpha_s * 1e6:.0f} us a message; all else is predicted from it")  # fmt: skip
    print(f"simulated times are at most {found.worst_error:.1%} off; of {told} pairs of algorithms that runs tell apart, {right} are ranked right")  # fmt: skip
    if found.wrong:
        print(f"{found.wrong} elements were wrong")


def _gloo(cluster: MiniCluster, found: Comparison, sizes: list[int], repeats: int) -> None:
    for (collective, size), times in gloo_times(cluster, list(COLLECTIVES), sizes, repeats).items():
        ours = next(row for row in found.rows if row.name == COLLECTIVES[collective] and row.size_bytes == size)
        predicted = ours.predicted.simulated_s
        print(f"gloo {collective:17}{format_bytes(size):>10}{min(times) * 1e3:13.1f}{predicted * 1e3:14.1f}{predicted / min(times) - 1:+8.1%}  as {ours.name}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
