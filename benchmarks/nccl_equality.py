"""`python -m benchmarks.nccl_equality DIR`: our model of NCCL beside what NCCL's own code printed.

DIR holds `<topology>.xml` (one node) and `<topology>.json.gz` or `.json` (a list, one entry a number of nodes): `nodes`, `nvls`,
`graphs`, `channels`, `nvls_channels`, `cells` [function, algorithm, protocol, latency us, bandwidth GB/s, max threads], `choices`
[function, bytes, algorithm, protocol, channels, warps, estimated us]. Prints the first differences and the shares that agree. A
cell agrees if latency and bandwidth are equal in all printed digits and threads exactly; a cell that one side lacks differs. A
choice agrees if algorithm, protocol, channels and warps are equal and the estimate within 0.1 % or half of the last printed digit.

The recordings come from NCCL's code without ranks that talk to each other. So what ranks tell each other is missing in them: the
rate of their nets, which sm_100 reads when it counts NVLS channels over three and more nodes. The model is asked for the same
(`net_rates_exchanged=False`); what a running job takes is printed beside, where it differs.

Exit status 0: all equal; 1: something differs; 2: nothing to compare.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.hardware.formats import NcclTopology, read_nccl_topology
from busbw.nccl import Algorithm, Communicator, Function, Protocol, communicator

__all__ = ["Equality", "compare_folder", "main"]

_ESTIMATE_SHARE = 0.001
_PRINTED_US = 0.005


@dataclass(slots=True)
class Equality:
    """How much agrees."""

    cells: int = 0
    equal_cells: int = 0
    choices: int = 0
    equal_choices: int = 0
    setups: int = 0
    """Topologies times numbers of nodes."""
    equal_setups: int = 0
    """Setups whose graphs and numbers of channels agree."""
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, entry: dict[str, Any], why: str) -> None:
        """Counts everything recorded of a setup that our model refuses as different."""
        self.setups += 1
        self.cells += len(entry["cells"])
        self.choices += len(entry["choices"])
        self.differences.append(why)

    @property
    def shares(self) -> tuple[float, float]:
        """Of cells and of choices; 0 where there are none."""
        return self.equal_cells / max(self.cells, 1), self.equal_choices / max(self.choices, 1)


def compare_folder(folder: Path) -> Equality:
    """Compares all topologies of a folder. A file that cannot be read is a difference."""
    equality = Equality()
    for xml in sorted(folder.glob("*.xml")):
        recorded = next((p for s in (".json.gz", ".json") if (p := folder / f"{xml.stem}{s}").exists()), None)
        if recorded is None:
            equality.notes.append(f"{xml.name}: nothing recorded beside it")
            continue
        try:
            topology, losses = read_nccl_topology(xml.read_bytes(), str(xml))
            text = gzip.decompress(recorded.read_bytes()) if recorded.suffix == ".gz" else recorded.read_bytes()
            entries = json.loads(text)
        except (InputError, OSError, EOFError, ValueError) as error:
            equality.differences.append(f"{xml.stem}: cannot be read: {error}")
            continue
        equality.notes += [str(loss) for loss in losses]
        for entry in entries:
            try:
                _compare(equality, xml.stem, topology, entry)
            except InputError as error:
                equality.refuse(entry, f"{xml.stem}, {entry['nodes']} nodes: refused: {error}")
    return equality


def _compare(equality: Equality, name: str, topology: NcclTopology, entry: dict[str, Any]) -> None:
    nodes, nvls = entry["nodes"], entry["nvls"]
    where = f"{name}, {nodes} nodes"
    model = communicator(topology, nodes, multicast=nvls, net_rates_exchanged=False)
    running = communicator(topology, nodes, multicast=nvls)
    if running.inputs.nvls_channels != model.inputs.nvls_channels:
        equality.notes.append(
            f"{where}: {model.inputs.nvls_channels} NVLS channels as recorded; a running job takes {running.inputs.nvls_channels}"
        )
    setup = list(_setup_differences(model, entry))
    equality.setups += 1
    equality.equal_setups += not setup
    equality.differences += [f"{where}: {line}" for line in setup]
    ours, theirs = _cells(model), {tuple(row[:3]): tuple(row[3:]) for row in entry["cells"]}
    for cell in sorted(ours.keys() | theirs.keys()):
        equality.cells += 1
        if ours.get(cell) == theirs.get(cell):
            equality.equal_cells += 1
        else:
            told = f"ours {ours.get(cell, 'off')}, NCCL's {theirs.get(cell, 'off')}"
            equality.differences.append(f"{where}: {' '.join(cell)}: {told}")
    for function in Function:
        rows = [row for row in entry["choices"] if row[0] == function.name]
        chosen = model.choices(function, [row[1] for row in rows]) if rows else ()
        for place, row in enumerate(rows):
            choice = chosen[place]
            named = [choice.algorithm.name, choice.protocol.name, choice.channels, choice.warps]
            near = abs(choice.time_us - row[6]) <= max(_ESTIMATE_SHARE * row[6], _PRINTED_US)
            equality.choices += 1
            if named == row[2:6] and near:
                equality.equal_choices += 1
            else:
                told = f"ours {[*named, round(choice.time_us, 2)]}, NCCL's {row[2:]}"
                equality.differences.append(f"{where}: {function.name} of {row[1]} bytes: {told}")


def _cells(model: Communicator) -> dict[tuple[str, ...], tuple[float, float, int]]:
    table = model.table
    return {
        (function.name, algorithm.name, protocol.name): (
            round(float(table.latency_us[function, algorithm, protocol]), 3),
            round(float(table.gb_per_s[function, algorithm, protocol]), 3),
            int(table.max_threads[algorithm, protocol]),
        )
        for function in Function
        for algorithm in Algorithm
        for protocol in Protocol
        if table.gb_per_s[function, algorithm, protocol] > 0
    }


def _setup_differences(model: Communicator, entry: dict[str, Any]) -> Iterator[str]:
    inputs = model.inputs
    ours: dict[str, Any] = {
        "gpus": model.gpus_per_node,
        "nets": model.nets_per_node,
        "max_bw": round(model.max_gb_per_s, 3),
        "total_bw": round(model.total_gb_per_s, 3),
        "channels": inputs.channels,
        "nvls_channels": inputs.nvls_channels,
    }
    for key, value in ours.items():
        if value != entry[key]:
            yield f"{key}: ours {value}, NCCL's {entry[key]}"
    for name, graph in {"ring": inputs.ring, "tree": inputs.tree, "nvls": inputs.nvls_graph}.items():
        found = {
            "pattern": int(graph.pattern),
            "cross_nic": graph.cross_nic,
            "channels": graph.channels,
            "bw_intra_GBps": round(graph.intra_gb_per_s, 3),
            "bw_inter_GBps": round(graph.inter_gb_per_s, 3),
            "type_intra": graph.type_intra.name,
            "type_inter": graph.type_inter.name,
            "same_channels": graph.same_channels,
            "latency_inter_us": round(graph.latency_inter_us, 3),
        }
        if found != entry["graphs"][name]:
            yield f"{name}: ours {found}, NCCL's {entry['graphs'][name]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares and prints; the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nccl_equality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--first", type=int, default=20, metavar="N", help="how many differences to print; 20")
    given = parser.parse_args(arguments)
    equality = compare_folder(given.folder)
    if not equality.cells:
        print(f"{given.folder}: no <topology>.xml with a <topology>.json.gz there", file=sys.stderr)
        return 2
    for line in equality.differences[: given.first]:
        print(line)
    if len(equality.differences) > given.first:
        print(f"... and {len(equality.differences) - given.first} more; --first prints more")
    cells, choices = equality.shares
    print(f"setups  {equality.equal_setups} of {equality.setups} equal")
    print(f"cells   {equality.equal_cells} of {equality.cells} equal: {cells:.4f}")
    print(f"choices {equality.equal_choices} of {equality.choices} equal: {choices:.4f}")
    for note in equality.notes:
        print(f"note: {note}", file=sys.stderr)
    return 1 if equality.differences else 0


if __name__ == "__main__":
    sys.exit(main())
