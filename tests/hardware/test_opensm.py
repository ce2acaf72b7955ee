"""D-mod-k against the routing tables that OpenSM's ftree engine made for a fabric of ibsim.

Recorded: OpenSM 3.3.23 -R ftree on ibsim 0.10, 648 hosts, 36 leaves L0 ... L35 of 36 ports, 18 spines; leaf ports 1 to
18 lead to spines S0 ... S17, ports 19 to 36 to hosts. `ibroute` of L0.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from busbw.hardware.fabrics import FatTree, LinkRates
from busbw.hardware.routing import d_mod_k

RECORDED = Path(__file__).parent / "opensm"
TREE = FatTree(648, (18, 36), (1, 18), (1, 1), LinkRates(1.0, 1.0))


def forwarding_table():
    """(name, is a switch) -> output port, of the switch L0."""
    text = gzip.decompress((RECORDED / "ibroute_648_hosts.txt.gz").read_bytes()).decode()
    rows = re.findall(r"^0x\w+ (\d+) : \((Switch|Channel Adapter) portguid 0x\w+: '(\w+)'\)", text, re.MULTILINE)
    return {(name, kind == "Switch"): int(port) for port, kind, name in rows}


def test_towards_hosts_d_mod_k_is_what_opensm_computed():
    """Port of L0 towards h_j: 19 + j for its own hosts, else the spine j mod 18, on port 1 + j mod 18."""
    table = forwarding_table()
    hosts = np.arange(648)
    leaf = TREE.slots  # L0 is the first switch
    ways = TREE.spread(np.full(648, leaf), hosts) % TREE.choices(np.full(648, leaf), hosts)
    ours = np.where(hosts // 18 == 0, 19 + hosts % 18, 1 + ways)
    assert {f"h{j}": int(port) for j, port in enumerate(ours)} == {
        name: port for (name, switch), port in table.items() if not switch
    }
    links = d_mod_k(TREE, np.zeros(630, np.int64), np.arange(18, 648)).links
    assert [TREE.vertex_name(int(v)) for v in TREE.link_ends(links[:, 1])[1]] == [
        f"spine{j % 18}" for j in range(18, 648)
    ]


def test_towards_switches_opensm_has_routes_and_we_have_none():
    """The difference: OpenSM also routes the LIDs of switches, for management packets, and leaves to one another by
    port 1 (each leaf is two links away over any spine; the first is taken). No flow ends at a switch, so our fabrics
    have no such routes.
    """
    table = forwarding_table()
    assert {port for (name, switch), port in table.items() if switch and name.startswith("L") and name != "L0"} == {1}
    assert {name: port for (name, switch), port in table.items() if switch and name.startswith("S")} == {
        f"S{j}": j + 1 for j in range(18)
    }
    assert table["L0", True] == 0  # itself


SHAPES = {
    "tapered": ((6, 4), (1, 3), (1, 1)),
    "parallel": ((4, 4), (1, 2), (1, 2)),
    "three_level": ((4, 4, 4), (1, 4, 4), (1, 1, 1)),
    "three_level_parallel": ((4, 4, 2), (1, 4, 2), (1, 1, 2)),
}


def recorded_routes(shape):
    """The tree, and the links that OpenSM's tables lead along, for every (source, destination)."""
    down, up, parallel = SHAPES[shape]
    tree = FatTree(int(np.prod(down)), down, up, parallel, LinkRates(1.0, 1.0))
    ends = tree.link_table()
    link = {}
    for vertex in range(tree.vertices):
        mine = np.flatnonzero(ends.src == vertex)
        link |= {(vertex, port): int(each) for port, each in enumerate([*mine[mine % 2 == 0], *mine[mine % 2 == 1]], 1)}
    tables: dict[str, dict[str, int]] = {}
    for line in gzip.decompress((RECORDED / f"ibroute_{shape}.txt.gz").read_bytes()).decode().splitlines():
        if head := re.match(r"Unicast lids .* \((\S+)\):", line):
            table = tables.setdefault(head[1], {})
        elif row := re.match(r"0x\w+ (\d+) : \(Channel Adapter portguid 0x\w+: '(\w+)'\)", line):
            table[row[2]] = int(row[1])
    routes = {}
    for src in range(tree.slots):
        for dst in range(tree.slots):
            path = [link[src, 1]] if src != dst else []
            while path and (at := int(ends.dst[path[-1]])) != dst:
                path.append(link[at, tables[tree.vertex_name(at)][f"nic{dst}"]])
            routes[src, dst] = path
    return tree, routes


def our_routes(tree):
    src, dst = np.divmod(np.arange(tree.slots**2), tree.slots)
    return {
        (int(a), int(b)): [int(link) for link in links if link >= 0]
        for a, b, links in zip(src, dst, d_mod_k(tree, src, dst).links, strict=True)
    }


@pytest.mark.parametrize("shape", ["tapered", "parallel"])
def test_on_two_levels_every_route_is_opensms_link_by_link(shape):
    """2 to 1 over-subscribed, and with two cables between each leaf and spine: all pairs."""
    tree, theirs = recorded_routes(shape)
    assert our_routes(tree) == theirs


def worst_of_shifts(tree, routes):
    """Most flows on one link, over all shift permutations."""
    n = tree.slots
    loads = (np.bincount(np.concatenate([routes[a, (a + s) % n] for a in range(n)]).astype(int)) for s in range(1, n))
    return max(int(load.max()) for load in loads)


@pytest.mark.parametrize("shape", ["three_level", "three_level_parallel"])
def test_on_three_levels_opensm_leaves_by_the_same_spine_and_counts_where_d_mod_k_computes(shape):
    """The difference: the cable from a spine to a core.

    OpenSM hands out the cables upwards of a spine in turn, counting what it gave out before; D-mod-k takes a digit of
    the destination. All pairs within a pod are equal link by link. Between pods leaf, spine and length are equal, and
    only what lies between the two spines may differ, for a quarter of the pairs at most. So OpenSM's routes are as
    short, and D-mod-k's never collide on a shift, which OpenSM's may.
    """
    tree, theirs = recorded_routes(shape)
    ours = our_routes(tree)
    pod = tree.down[0] * tree.down[1]
    different = 0
    for (src, dst), path in ours.items():
        if src // pod == dst // pod:
            assert path == theirs[src, dst]
        else:
            other = theirs[src, dst]
            assert len(path) == len(other) == 6
            assert (path[:2], path[4:]) == (other[:2], other[4:])
            different += path != other
    assert 0 < different <= len(ours) / 4
    assert worst_of_shifts(tree, ours) == 1
    assert worst_of_shifts(tree, theirs) in (1, 2)
