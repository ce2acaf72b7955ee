"""D-mod-k against the routing tables that OpenSM's ftree engine made for a fabric of ibsim.

Recorded: OpenSM 3.3.23 -R ftree on ibsim 0.10, 648 hosts, 36 leaves L0 ... L35 of 36 ports, 18 spines; leaf ports 1 to
18 lead to spines S0 ... S17, ports 19 to 36 to hosts. `ibroute` of L0.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np

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
