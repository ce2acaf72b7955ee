"""PCIe: lspci -vv, the CUDA sample p2pBandwidthLatencyTest, the kernel's command line and log."""

from __future__ import annotations

import pytest

from .told import Case, Row, check, fires, fires_on, near_miss, near_miss_on, row, shown

GPU = "3D controller"


def lspci(
    bus_id: str, kind: str, name: str, speed: str, width: int, *, most: tuple[str, int] = ("32", 16), mark: bool = False
) -> list[Row]:
    """A device with its link as lspci -vv tells it: events that carry their device."""
    make, mine = (shown if mark else row), {"bus_id": bus_id, "device_class": kind}
    return [
        row("events", event="pci.device", text=f"{bus_id} {kind}: {name}", fields={"bus_id": bus_id, "class": kind, "name": name}),
        row("devices", kind="pci_device", bus_id=bus_id, name=name, attributes={"class": kind}),
        make("events", event="pci.link_capability", text="LnkCap", fields={"speed": most[0], "width": str(most[1]), **mine}),
        make("events", event="pci.link_status", text="LnkSta", fields={"speed": speed, "width": str(width), **mine}),
    ]  # fmt: skip


def acs(bus_id: str, flags: str, mark: bool = False) -> Row:
    fields = {"bus_id": bus_id, "device_class": "PCI bridge", "flags": flags}
    return (shown if mark else row)("events", event="pci.acs", text=f"ACSCtl: {flags}", fields=fields)


def tree(**parents: str) -> list[Row]:
    """lspci -t: who is above whom, by short names of buses."""

    def bus(short: str) -> str:
        return f"0000:{short}:00.0"

    return [row("devices", kind="pci_tree", bus_id=bus(k.removeprefix("b")), attributes={"parent": bus(v)}) for k, v in parents.items()]  # fmt: skip


def gpu(bus_id: str, width: str, gen: str, mark: bool = False, **more: str) -> Row:
    attributes = {"pcie.link.width.current": width, "pcie.link.gen.current": gen, **more}
    return (shown if mark else row)(
        "devices", kind="gpu", bus_id=bus_id, name="NVIDIA H100 80GB HBM3", attributes=attributes
    )


CASES = (
    fires("access_control", "pcie-acs-enabled", """
        3c:00.0 PCI bridge: PLX Technology, Inc. PEX 8747 48-Lane Gen3 switch
                        ACSCap: SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
        >                 ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
    """),
    near_miss("access_control", "the capability is there and turned off", """
        3c:00.0 PCI bridge: PLX Technology, Inc. PEX 8747 48-Lane Gen3 switch
                        ACSCap: SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+
                        ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
    """),
    near_miss("access_control", "source validation redirects nothing: bit 0", """
        ACSCtl: 0x0001 = SrcValid+
    """),
    fires("slower_with_p2p", "iommu-p2p", """
        P2P Connectivity Matrix
             D\\D     0     1
        >      0       1     1
        >      1       1     1
        Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
           D\\D     0      1
        >      0 640.10  18.31
        >      1  18.40 641.00
        Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
           D\\D     0      1
        >      0 640.31   1.92
        >      1   1.90 641.20
    """, severity="fatal"),
    near_miss("slower_with_p2p", "P2P wins", """
        Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
           D\\D     0      1
             0 640.10  18.31
             1  18.40 641.00
        Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
           D\\D     0      1
             0 640.31  26.02
             1  26.11 641.20
    """),
    near_miss("slower_with_p2p", "pairs without peer access", """
        P2P Connectivity Matrix
             D\\D     0     1
             0       1     0
             1       0     1
        Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
           D\\D     0      1
             0 640.10  18.31
             1  18.40 641.00
        Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
           D\\D     0      1
             0 640.31   6.02
             1   6.11 641.20
    """),
    fires("iommu_in_the_way", "iommu-p2p", """
        > [ 2201.771202] DMAR: [DMA Read NO_PASID] Request device [9a:00.0] fault addr 0x3a8000000000 [fault reason 0x06] PTE Read access is not set
    """, severity="fatal"),
    fires("iommu_in_the_way", "iommu-p2p", """
        > [    0.000000] Command line: BOOT_IMAGE=/vmlinuz-6.8.0 root=/dev/sda2 intel_iommu=on
        cn91:70:99 [1] NCCL INFO Could not enable P2P between dev 1(=61000) and dev 0(=41000)
    """, severity="major", why="on without pass-through"),
    near_miss("iommu_in_the_way", "pass-through", """
        [    0.000000] Command line: BOOT_IMAGE=/vmlinuz-6.8.0 root=/dev/sda2 amd_iommu=on iommu=pt
        cn91:70:99 [1] NCCL INFO Could not enable P2P between dev 1(=61000) and dev 0(=41000)
    """),
    near_miss("iommu_in_the_way", "on, and nothing is refused", """
        [    0.000000] Command line: BOOT_IMAGE=/vmlinuz-6.8.0 root=/dev/sda2 intel_iommu=on
        [    1.110013] DMAR: IOMMU enabled
    """),
    fires("narrow_link", "pcie-link-degraded", """
        9a:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
        >         LnkCap: Port #0, Speed 32GT/s, Width x16, ASPM not supported
        >         LnkSta: Speed 32GT/s (ok), Width x8 (downgraded)
    """, severity="major"),
    near_miss("narrow_link", "full speed and width", """
        9a:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
                LnkCap: Port #0, Speed 32GT/s, Width x16, ASPM not supported
                LnkSta: Speed 32GT/s (ok), Width x16 (ok)
    """),
    near_miss("narrow_link", "a disk", """
        02:00.0 Non-Volatile memory controller: Samsung Electronics Co Ltd NVMe SSD Controller PM173X
                LnkCap: Port #0, Speed 16GT/s, Width x4, ASPM not supported
                LnkSta: Speed 8GT/s (downgraded), Width x4 (ok)
    """),
    near_miss("narrow_link", "another device below its speed", """
        9a:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB]
                LnkCap: Port #0, Speed 16GT/s, Width x16, ASPM not supported
                LnkSta: Speed 16GT/s (ok), Width x16 (ok)
        a0:00.0 USB controller: Renesas Technology Corp. uPD720201
                LnkCap: Port #0, Speed 5GT/s, Width x1, ASPM L0s L1
                LnkSta: Speed 2.5GT/s (downgraded), Width x1 (ok)
    """),
    fires_on("access_control", "pcie-acs-enabled", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA H100", "32", 16), acs("0000:40:00.0", "SrcValid+ ReqRedir+", mark=True), acs("0000:02:00.0", "SrcValid+ ReqRedir+")],
        "tree.txt": tree(b41="40", b03="02"),
    }, why="the bridge above the GPU, not the one above a disk"),
    near_miss_on("access_control", "only a bridge that leads to a disk redirects", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA H100", "32", 16), acs("0000:40:00.0", "SrcValid+ ReqRedir-"), acs("0000:02:00.0", "SrcValid+ ReqRedir+")],
        "tree.txt": tree(b41="40", b03="02"),
    }),
    fires_on("narrow_link", "pcie-link-degraded", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA H100", "32", 16), *lspci("0000:42:00.0", GPU, "NVIDIA H100", "32", 16),
                      *lspci("0000:43:00.0", GPU, "NVIDIA H100", "16", 16, mark=True)],
    }, severity="major", why="one GPU slower than its siblings"),
    fires_on("narrow_link", "pcie-link-degraded", {
        "lspci.txt": lspci("0000:51:00.0", "Infiniband controller", "ConnectX-7", "16", 16, mark=True),
    }, severity="major", why="a NIC does not save power"),
    near_miss_on("narrow_link", "all GPUs are idle", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA H100", "2.5", 16), *lspci("0000:42:00.0", GPU, "NVIDIA H100", "2.5", 16)],
    }),
    near_miss_on("narrow_link", "a bridge to an empty slot", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA H100", "32", 16), *lspci("0000:00:1c.0", "PCI bridge", "Intel Root Port", "2.5", 1, most=("8", 4))],
    }),
    fires_on("gpu_link_below_siblings", "pcie-link-degraded", {
        "smi.csv": [gpu("0000:1b:00.0", "16", "5", mark=True), gpu("0000:1c:00.0", "16", "5", mark=True), gpu("0000:1d:00.0", "8", "5", mark=True), gpu("0000:1e:00.0", "16", "5")],
    }, severity="major"),
    near_miss_on("access_control", "a workstation with one GPU: ports redirect because the IOMMU is on, and there is no peer", {
        "lspci.txt": [*lspci("0000:00:00.0", "Host bridge", "Intel Device", "32", 16), *lspci("0000:41:00.0", "VGA compatible controller", "NVIDIA AD102", "16", 16), acs("0000:40:00.0", "SrcValid+ ReqRedir+")],
    }),
    fires_on("access_control", "pcie-acs-enabled", {
        "lspci.txt": [*lspci("0000:00:00.0", "Host bridge", "Intel Device", "32", 16), *lspci("0000:41:00.0", GPU, "NVIDIA H100", "32", 16), *lspci("0000:42:00.0", "Infiniband controller", "ConnectX-7", "32", 16),
                      acs("0000:40:00.0", "SrcValid+ ReqRedir+", mark=True)],
    }, why="a GPU and a NIC are peers"),
    fires_on("narrow_link", "pcie-link-degraded", {
        "lspci.txt": [*lspci("0000:41:00.0", GPU, "NVIDIA A100", "16", 16, most=("16", 16)), *lspci("0000:42:00.0", GPU, "NVIDIA A100", "16", 16, most=("16", 16)),
                      *lspci("0000:43:00.0", GPU, "NVIDIA A100", "2.5", 16, most=("16", 16), mark=True)],
    }, severity="minor", why="one GPU of several rests, or is broken: lspci does not say"),
    near_miss("narrow_link", "a GPU is in its first generation while the machine boots", """
        [   14.001] nvidia 0000:3b:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at 0000:3a:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)
    """),
    near_miss_on("gpu_link_below_siblings", "one GPU of several has no load", {
        "smi.csv": [gpu(f"0000:{i}b:00.0", "16", "1" if i == 3 else "4", pstate="P8" if i == 3 else "P0") for i in range(4)],
    }),
    fires_on("gpu_link_below_siblings", "pcie-link-degraded", {
        "smi.csv": [gpu(f"0000:{i}b:00.0", "16", "1" if i == 3 else "4", mark=i != 2) for i in range(4)],
    }, severity="minor", why="of whose load nothing is known"),
    fires_on("gpu_link_below_siblings", "pcie-link-degraded", {
        "smi.csv": [gpu(f"0000:{i}b:00.0", "16", "1" if i == 3 else "4", mark=i != 2, **{"utilization.gpu_pct": "99 %", "pstate": "P0"}) for i in range(4)],
    }, severity="major", why="under load"),
    near_miss_on("gpu_link_below_siblings", "all GPUs are idle in generation 1", {
        "smi.csv": [gpu(f"0000:{i}b:00.0", "16", "1") for i in range(4)],
    }),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)


def test_a_narrow_link_in_the_words_of_the_kernel():
    """drivers/pci/pci.c prints the device in front."""
    check(fires("narrow_link", "pcie-link-degraded", """
        > [   12.001] mlx5_core 0000:9a:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:97:02.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)
    """))  # fmt: skip
