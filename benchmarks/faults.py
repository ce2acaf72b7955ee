"""`python -m benchmarks.faults [--trials N] [--data DIR]`: how often a fault planted in a curve is named, and false alarms.

Curves are those of the time model with one thing broken, at several platforms: each machine has a factor of its own (standard
deviation 6 %), each row noise (4 %), and the figure of the fault lies between those that the hypotheses try. Healthy are such curves
without fault, and with --data the healthy tables of NCCL and RCCL in a folder of measured/1, as text of nccl-tests through
`busbw explain`'s own code.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from busbw.diagnosis.explain import explain
from busbw.diagnosis.hypotheses import fits, named
from busbw.hardware import find_cluster, pcie_bytes_per_s
from busbw.nccl import Communicator
from busbw.observations import Artefact
from busbw.prediction import Situation, load_calibration, model_in, predict_in, situation_of

__all__ = ["PLATFORMS", "alarms_on_tables", "as_text", "planted", "report"]

SIZES = [8 << place for place in range(0, 31, 2)]
_MACHINE, _ROW = 0.06, 0.04
PLATFORMS = (
    ("dgx-a100", 1, "all_reduce"), ("dgx-a100", 4, "all_reduce"), ("dgx-h100", 1, "all_reduce"), ("dgx-h100", 2, "all_reduce"),
    ("dgx-h100", 16, "all_reduce"), ("dgx-h100", 8, "all_gather"), ("dgx-h200", 4, "reduce_scatter"), ("dgx-b200", 4, "all_reduce"),
    ("mi300x-8", 2, "all_reduce"), ("l40s-8", 1, "all_reduce"),
)  # fmt: skip


def planted(where: Situation) -> Iterator[tuple[str, Situation, float]]:
    """(kind, situation, delay) of each fault that can be there."""
    if where.domains > 1:
        share = load_calibration().parameters["network_share"].of("sockets", "sockets")
        sockets = replace(where, network="sockets", network_bytes_per_s=2.8e9 / share, nics=1)
        yield "socket-fallback", sockets, 0.0
        yield "gdr-peermem-missing", replace(where, network_bytes_per_s=where.network_bytes_per_s * 0.42), 0.0
        yield (
            "link-rate-degraded",
            replace(where, network_bytes_per_s=where.network_bytes_per_s / where.nics, nics=1),
            0.0,
        )
        if where.network_bytes_per_s / where.nics > 12e9:
            yield "pcie-link-degraded", replace(where, network_bytes_per_s=pcie_bytes_per_s(3, 8) * where.nics), 0.0
    elif where.shape == "none":
        yield "pcie-link-degraded", replace(where, intra_bytes_per_s=pcie_bytes_per_s(3, 8)), 0.0
    else:
        yield "env-p2p-level-forced", replace(where, intra_bytes_per_s=9e9 / 0.73, shape="none", nvls=False), 0.0
        yield "nvlink-down", replace(where, intra_bytes_per_s=where.intra_bytes_per_s / 2), 0.0
    if where.nvls:
        yield "fabric-manager-state", replace(where, nvls=False), 0.0
    yield "slow-node", where, 1.7e-3


def _runs(where: Situation, broken: Situation) -> Communicator | None:
    """What NCCL chooses by: fewer NICs it sees, links that are slow it does not; None, the fastest, without NVLS or peer access."""
    if broken.nics != where.nics:
        return model_in(broken)
    return model_in(where) if (broken.nvls, broken.shape) == (where.nvls, where.shape) else None


def report(trials: int, seed: int = 1) -> dict[str, Any]:
    """By fault how often it was named, something else was, or nothing; and named faults of healthy curves."""
    rng = np.random.default_rng(seed)
    rows: dict[str, Counter[str]] = {}
    for name, nodes, collective in PLATFORMS:
        where = situation_of(find_cluster(name, nodes)[0])
        for kind, broken, delay_s in (("healthy", where, 0.0), *planted(where)):
            modelled = predict_in(broken, collective, SIZES, model=_runs(where, broken)).time_s + delay_s
            for _ in range(trials):
                noise = rng.normal(0, _ROW, len(SIZES)) + rng.normal(0, _MACHINE)
                found = fits(where, collective, SIZES, (modelled * np.exp(noise)).tolist())
                best = named(found)
                said = "nothing" if best is None else best.hypothesis.kind
                rows.setdefault(kind, Counter())[
                    "right" if said == kind else "nothing" if best is None else "other"
                ] += 1
    return {kind: dict(counts) for kind, counts in rows.items()}


def as_text(document: dict[str, Any]) -> str | None:
    """A measured/1 table of one collective as the output of nccl-tests, devices listed and NICs by ibstat; None where it is none."""
    hardware, ranks = document["hardware"], document.get("ranks")
    program = {
        "all_reduce": "all_reduce",
        "all_gather": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "alltoall": "alltoall",
        "broadcast": "broadcast",
    }.get(document["collective"])
    nodes = hardware.get("nodes")
    if program is None or not isinstance(ranks, int) or not isinstance(nodes, int) or ranks % nodes:
        return None
    per = ranks // nodes
    lines = [f"# Collective test starting: {program}_perf"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on node{rank // per} device {rank % per} [0x{rank % per:02x}] {hardware['gpu']}"
        for rank in range(ranks)
    ]
    lines += [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    factor = {"all_reduce": 2.0, "broadcast": 0.0}.get(program, 1.0) * (ranks - 1) / ranks or 1.0
    for row in document["rows"]:
        size, time_us = row.get("bytes"), row.get("time_us")
        if size and time_us:
            rate = size / time_us / 1e3
            half = f"{time_us:.2f} {rate:.2f} {rate * factor:.2f} 0"
            lines.append(f"{size:12d} {size // 4:12d} float sum -1 {half} {half}")
    if nodes > 1 and hardware.get("nics_per_node") and hardware.get("nic_gbps"):
        for nic in range(hardware["nics_per_node"]):
            lines += [
                f"CA 'mlx5_{nic}'", "\tCA type: MT4129", "\tNumber of ports: 1", "\tPort 1:", "\t\tState: Active",
                "\t\tPhysical state: LinkUp", f"\t\tRate: {hardware['nic_gbps']}", "\t\tBase lid: 1", "\t\tLink layer: InfiniBand",
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


_OVER_TCP = ("azure-ndv4-2n-allreduce-ipoib", "cscs-gh200-2n-allreduce-nohook")
"""Tables measured over TCP on nodes with fast NICs: the first on purpose and called healthy, the second called sick."""


def alarms_on_tables(folder: Path) -> dict[str, Any]:
    """Of healthy tables written out as text: how many, and what the rule said; and what it said first of those over TCP."""
    alarms: list[str] = []
    over_tcp: dict[str, str] = {}
    count = 0
    with tempfile.TemporaryDirectory() as spool:
        for path in sorted(folder.glob("*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            library = str(document.get("software", {}).get("library", ""))
            is_healthy = document.get("health") == "healthy" and path.stem not in _OVER_TCP
            wanted = (is_healthy and library.startswith(("NCCL", "RCCL"))) or path.stem in _OVER_TCP
            text = as_text(document) if wanted else None
            if text is None:
                continue
            count += is_healthy
            file = Path(spool) / f"{path.stem}.txt"
            file.write_text(text, encoding="utf-8")
            found = explain([Artefact.of(file, file.name)]).diagnosis.findings
            if path.stem in _OVER_TCP:
                over_tcp[path.stem] = found[0].kind if found else "nothing"
                continue
            alarms += [
                f"{path.stem}: {finding.kind} {finding.severity} {finding.confidence:.2f}: {finding.summary}"
                for finding in found
                if "the model with" in finding.summary
            ]
    return {"tables": count, "alarms": alarms, "over_tcp": over_tcp}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both as JSON."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.split("\n\n")[1])
    parser.add_argument("--trials", type=int, default=20, help="curves a fault and platform")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of measured/1 tables")
    given = parser.parse_args(arguments)
    answer: dict[str, Any] = {"planted": report(given.trials)}
    if given.data is not None:
        answer |= alarms_on_tables(given.data)
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
