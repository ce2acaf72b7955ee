"""PCI trees that a virtual machine hides or invents: NCCL src/graph/xml.cc, search.cc, topology files."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("no_path_found", "library-bug-version", """
        > vm-4:611:640 [0] graph/search.cc:1120 NCCL WARN Could not find a path for pattern 4, falling back to simple order
    """),
    fires("no_path_found", "vm-topology-file", """
        > vm-4:611:640 [0] graph/xml.h:77 NCCL WARN Attribute busid of node nic not found
    """, why="an attribute is missing"),
    near_miss("no_path_found", "a path was found", """
        vm-4:611:640 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 48.000000/48.000000, type NVL/PIX, sameChannels 1
    """),
    fires("hidden_links", "vm-topology-file", """
        > vm-4:611:640 [0] NCCL INFO Topology detection : could not read /sys/devices/pci0000:00/0000:00:05.0/../max_link_speed, ignoring
        > vm-4:611:640 [0] NCCL INFO KV Convert to int : could not find value of '' in dictionary, falling back to 60
    """, severity="minor"),
    near_miss("hidden_links", "an interface without a PCI device", """
        vm-4:611:640 [0] NCCL INFO Could not find real path of /sys/class/net/lo/device
        vm-4:611:640 [0] NCCL INFO Topology detection : could not read /sys/devices/virtual/net/lo/device/class, ignoring
    """),
    fires("bottleneck_in_topology_file", "vm-topology-file", {"topo.xml": """
        <system version="1">
          <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
        >     <pci busid="0000:05:00.0" class="0x030200" link_speed="2.5 GT/s" link_width="1">
              <gpu dev="0" sm="80" rank="0" gdr="1"/>
            </pci>
          </cpu>
        </system>
    """}, severity="major"),
    fires("bottleneck_in_topology_file", "vm-topology-file", """
        > vm-4:611:640 [0] NCCL INFO === System : maxBw 0.2 totalBw 12.0 ===
    """, why="the system as NCCL sees it"),
    near_miss("bottleneck_in_topology_file", "links as fast as the devices", {"topo.xml": """
        <system version="1">
          <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
            <pci busid="0000:05:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
              <gpu dev="0" sm="80" rank="0" gdr="1"/>
            </pci>
          </cpu>
        </system>
    """}),
    near_miss("bottleneck_in_topology_file", "a system of the usual speed", """
        cn17:611:640 [0] NCCL INFO === System : maxBw 48.0 totalBw 370.8 ===
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
