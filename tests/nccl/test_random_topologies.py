"""Laws of the channel search on small topologies made at random, none of which was ever recorded.

A node has one or two CPUs, PCIe switches with GPUs and NICs below, and NVLink to a switch, in pairs, or none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.hardware.formats import read_nccl_topology
from busbw.nccl import Algorithm, Function, Pattern, Settings, communicator
from busbw.nccl.constants import load_constants
from busbw.nccl.paths import Paths
from busbw.nccl.search import NodeSearch
from busbw.nccl.topology import Kind, PathType, topology_graph

CONSTANTS = load_constants()


@dataclass(frozen=True)
class Machine:
    """What a topology file is written from."""

    capability: int
    cpu: str
    switches: tuple[tuple[int, int], ...]
    """GPUs and NICs below each PCIe switch."""
    sockets: int
    nvlink: str
    """none, pairs or switch."""
    net_gbit: int
    speed: str = "32.0 GT/s PCIe"
    first_rank: int = 0

    @property
    def gpus(self) -> int:
        return sum(gpus for gpus, _ in self.switches)

    @property
    def nets(self) -> int:
        return sum(nets for _, nets in self.switches)

    def xml(self) -> str:
        cpus: list[list[str]] = [[] for _ in range(self.sockets)]
        gpu = net = 0
        for place, (gpus, nets) in enumerate(self.switches):
            lines = [self._pci(f"0000:{place + 1:02x}:00.0", "0x060400")]
            for _ in range(gpus):
                lines += [self._pci(self._gpu_bus(gpu, place), "0x030200"), self._gpu(gpu), "</pci>"]
                gpu += 1
            for _ in range(nets):
                lines += [self._pci(f"0000:{place + 1:02x}:{16 + net:02x}.0", "0x020700"), self._net(net), "</pci>"]
                net += 1
            cpus[place * self.sockets // len(self.switches)] += [*lines, "</pci>"]
        vendor = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}[self.cpu]
        head = f'arch="x86_64" vendor="{vendor}" familyid="6" modelid="143"'
        body = [f'<cpu host_hash="0x1" numaid="{i}" {head}>{"".join(lines)}</cpu>' for i, lines in enumerate(cpus)]
        return f'<system version="1">{"".join(body)}</system>'

    def _gpu_bus(self, gpu: int, place: int) -> str:
        return f"0000:{place + 1:02x}:{gpu + 1:02x}.0"

    def _pci(self, bus: str, class_: str) -> str:
        return f'<pci busid="{bus}" class="{class_}" link_speed="{self.speed}" link_width="16">'

    def _gpu(self, gpu: int) -> str:
        links = ""
        if self.nvlink == "switch":
            links = '<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>'
        elif self.nvlink == "pairs" and gpu ^ 1 < self.gpus:
            peer = gpu ^ 1
            place = next(i for i in range(len(self.switches)) if sum(g for g, _ in self.switches[: i + 1]) > peer)
            links = f'<nvlink target="{self._gpu_bus(peer, place)}" count="4" tclass="0x030200"/>'
        return f'<gpu dev="{gpu}" sm="{self.capability}" rank="{gpu + self.first_rank}" gdr="1">{links}</gpu>'

    def _net(self, net: int) -> str:
        speed = self.net_gbit * 1000
        return f'<nic><net name="m{net}" dev="{net}" speed="{speed}" port="1" guid="0x{net + 1:x}" gdr="1"/></nic>'


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    switches = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4))
    if not any(gpus for gpus, _ in switches):
        switches[0] = (1, switches[0][1])
    if not any(nets for _, nets in switches):
        switches[-1] = (switches[-1][0], 1)
    return Machine(
        capability=draw(st.sampled_from([70, 80, 90, 100])),
        cpu=draw(st.sampled_from(["intel", "amd"])),
        switches=tuple(switches),
        sockets=draw(st.integers(1, min(2, len(switches)))),
        nvlink=draw(st.sampled_from(["none", "pairs", "switch"])),
        net_gbit=draw(st.sampled_from([25, 100, 200, 400])),
        speed=draw(st.sampled_from(["8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"])),
    )


def topology_of(machine: Machine):
    topology, losses = read_nccl_topology(machine.xml(), "made.xml")
    assert losses == []
    return topology


def found_graphs(machine: Machine, nodes: int):
    inputs = communicator(topology_of(machine), nodes).inputs
    return [graph for graph in (inputs.ring, inputs.tree, inputs.nvls_graph) if graph.channels]


@given(machine=machines(), nodes=st.sampled_from([1, 2]))
def test_every_gpu_is_in_a_ring_or_tree_once_and_heads_differ(machine, nodes):
    for graph in found_graphs(machine, nodes):
        assert len(graph.gpus) == graph.channels
        if graph.pattern is Pattern.NVLS:
            heads = [head for (head,) in graph.gpus]
            assert len(set(heads)) == len(heads)
        else:
            assert all(sorted(channel) == list(range(machine.gpus)) for channel in graph.gpus)


@given(machine=machines())
def test_channels_between_nodes_leave_by_nets_that_exist_and_on_one_node_by_none(machine):
    for graph in found_graphs(machine, 2):
        assert len(graph.nets) == graph.channels
        assert all(0 <= net < machine.nets for pair in graph.nets for net in pair)
        if graph.cross_nic == 0:
            assert all(entered == left for entered, left in graph.nets)
    assert all(graph.nets == () for graph in found_graphs(machine, 1))


@given(machine=machines(), nodes=st.sampled_from([1, 2]))
def test_no_channel_uses_a_path_worse_than_it_admits(machine, nodes):
    """type_intra and type_inter bound every hop; LL128 is switched by them."""
    graph = topology_graph(topology_of(machine), CONSTANTS)
    paths = Paths(graph, CONSTANTS, Settings())
    for found in found_graphs(machine, nodes):
        if found.pattern is Pattern.NVLS or found.intra_gb_per_s == pytest.approx(0.1):
            continue
        for channel in found.gpus:
            hops = list(itertools.pairwise(channel))
            if nodes == 1 and found.pattern is Pattern.RING and len(channel) > 1:
                hops.append((channel[-1], channel[0]))
            assert all(paths.gpu_to(a, Kind.GPU)[b].type <= found.type_intra for a, b in hops)
        for channel, (entered, left) in zip(found.gpus, found.nets, strict=False):
            last = channel[-1] if found.pattern is Pattern.RING else channel[0]
            assert paths.of(graph.nets[entered], Kind.GPU)[channel[0]].type <= found.type_inter
            assert paths.gpu_to(last, Kind.NET)[left].type <= found.type_inter


@given(machine=machines(), nodes=st.sampled_from([1, 2]))
def test_rings_never_take_more_from_a_link_than_it_has(machine, nodes):
    """What all rings of the node send over each link, one way, is at most its rate; links of before-Ampere GPUs carry 1/8 back too."""
    graph = topology_graph(topology_of(machine), CONSTANTS)
    paths = Paths(graph, CONSTANTS, Settings())
    search = NodeSearch(paths, CONSTANTS, nodes > 1)
    ring = search.ring()
    if ring.intra_gb_per_s == pytest.approx(0.1):
        return
    load: Counter[object] = Counter()

    def send(path, rate):
        for link in path.links:
            load[link] += rate

    for channel, ends in zip(ring.gpus, ring.nets or [None] * ring.channels, strict=True):
        hops = list(itertools.pairwise(channel))
        if ends is None:
            hops += [(channel[-1], channel[0])] if len(channel) > 1 else []
        else:
            send(paths.of(graph.nets[ends[0]], Kind.GPU)[channel[0]], ring.inter_gb_per_s)
            send(paths.gpu_to(channel[-1], Kind.NET)[ends[1]], ring.inter_gb_per_s)
        for a, b in hops:
            send(paths.gpu_to(a, Kind.GPU)[b], ring.intra_gb_per_s)
    rounding = 0.002 * ring.channels
    assert all(taken <= link.gb_per_s + rounding for link, taken in load.items())


@given(machine=machines(), nodes=st.sampled_from([1, 2]), shift=st.integers(1, 1000))
def test_numbers_of_ranks_change_nothing(machine, nodes, shift):
    """Ranks name GPUs; a communicator that begins at another number is the same one. (The order of GPUs does matter to NCCL.)"""
    other = replace(machine, first_rank=shift)
    assert found_graphs(machine, nodes) == found_graphs(other, nodes)


@given(machine=machines(), nodes=st.integers(1, 40))
def test_every_function_has_a_choice_and_longer_messages_never_take_less_time(machine, nodes):
    """The estimate of the chosen cell grows with size where no correction factor speaks: every function but AllReduce."""
    model = communicator(topology_of(machine), nodes)
    sizes = [2**k for k in range(6, 34)]
    for function in Function:
        chosen = model.choices(function, sizes)
        assert (chosen.channels >= 1).all() and (chosen.channels <= 64).all()
        assert (chosen.warps >= 1).all() and (chosen.warps <= 20).all()
        if function is not Function.AllReduce:
            assert (chosen.time_us[1:] >= chosen.time_us[:-1]).all()


@given(machine=machines())
def test_a_cell_is_on_or_has_a_cause(machine):
    model = communicator(topology_of(machine), 2)
    table = model.table
    for function in Function:
        off = model.why_off(function)
        for algorithm in Algorithm:
            for protocol in range(3):
                if model.inputs.ranks == 1:
                    continue
                on = table.gb_per_s[function, algorithm, protocol] > 0
                assert on != bool(off.get((algorithm, protocol), ())), (function, algorithm, protocol)


CASES = [
    (Machine(80, "intel", ((4, 1),), 1, "none", 200), 1, "PIX"),
    (Machine(80, "intel", ((4, 1),), 1, "none", 200), 4, "PIX"),
    (Machine(90, "intel", ((2, 1), (2, 1), (2, 1), (2, 1)), 2, "switch", 400), 4, "NVL"),
    (Machine(80, "amd", ((3, 1), (2, 1), (3, 1), (2, 1)), 2, "none", 200), 2, "SYS"),
]


@pytest.mark.parametrize(("machine", "nodes", "farthest"), CASES)
def test_machines_that_people_have(machine, nodes, farthest):
    """Four GPUs on one switch; eight GPUs that share four NICs; ten GPUs on two sockets: the farthest GPUs bound the rings."""
    ring = communicator(topology_of(machine), nodes).inputs.ring
    assert ring.type_intra == PathType[farthest]
    assert ring.channels >= 1
    net = machine.net_gbit / 8
    if nodes > 1:
        assert ring.channels * ring.inter_gb_per_s <= machine.nets * net + 0.01
