"""Jobs whose reports show every part of the page, as files: what their tools print, with the figures this text names."""

from __future__ import annotations

import json
from pathlib import Path

HOSTILE = "<script>alert(1)</script><img/src=x/onerror=alert(2)>\"'&]]>--><svg/onload=alert(3)>`id`"
"""No blanks: it must fit where a log has one word."""


def faulty(folder: Path, hosts: int = 2) -> Path:
    """Ranks 0 to 15 on two nodes. GPU3 of node0 reports Xid 79 at 09:00:30; rank 3 fails then, the others 0.2 s to 10 min later.

    node1 has no GPUDirect on NIC 2; GPU5's NIC is across sockets; all-reduce reaches 21 GB/s; gpu 2 is slow with all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for h in range(hosts):
        (folder / f"node{h}.log").write_text(_nccl_log(h, hosts), encoding="utf-8")
    (folder / "node0-dmesg.txt").write_text(
        "2026-03-01T09:00:30,100000+00:00 node0 kernel: pcieport 0000:ab:01.0: AER: Corrected error received: 0000:ab:01.0\n"
        "2026-03-01T09:00:30,250000+00:00 node0 kernel: NVRM: Xid (PCI:0000:04:01): 79, pid=4003, name=python3, GPU has fallen off the bus.\n",
        encoding="utf-8",
    )
    (folder / "topo.txt").write_text(topo_matrix(), encoding="utf-8")
    (folder / "topo.xml").write_text(topo_xml(), encoding="utf-8")
    (folder / "all_reduce.txt").write_text(_nccl_tests(), encoding="utf-8")
    (folder / "p2p.txt").write_text(_p2p(), encoding="utf-8")
    return folder


def _nccl_log(host: int, hosts: int) -> str:
    name, lines = f"node{host}", []
    for device in range(8):
        rank = 8 * host + device
        head = f"[2026-03-01 08:59:0{device}] {name}:{4000 + rank}:{5000 + rank} [{device}] NCCL INFO "
        lines.append(f"{head}NCCL version 2.2{8 if rank == 9 else 7}.3+cuda12.8")
        lines.append(f"{head}Using network IB")
        lines.append(
            f"{head}ncclCommInitRank comm 0x55{rank:02x} rank {rank} nranks {8 * hosts} cudaDev {device} nvmlDev {device} "
            f"busId {device + 1}1000 commId 0xabc - Init COMPLETE"
        )
        direct = "" if host == 1 and device == 2 else "/GDRDMA"
        lines.append(
            f"{head}Channel 00/0 : {rank}[{device}] -> {(rank + 8) % (8 * hosts)}[{device}] [send] via NET/IB/{device}{direct}"
        )
        lines.append(
            f"{head}Channel 00/0 : {rank}[{device}] -> {8 * host + (device + 1) % 8}[{(device + 1) % 8}] via P2P/CUMEM"
        )
        lines.append(f"{head}NCCL_IB_HCA set by environment to mlx5")
        if rank == 9:
            lines.append(f"{head}NCCL_PROTO set by environment to Simple")
    for device in range(8):
        rank = 8 * host + device
        head = f"{name}:{4000 + rank}:{6000 + rank} [{device}] "
        if rank == 3:
            lines.append(
                f"[2026-03-01 09:00:30.400000] {head}enqueue.cc:1556 NCCL WARN Cuda failure 'unspecified launch failure'"
            )
        elif rank % 3 == 0:
            lines.append(
                f"[2026-03-01 09:00:30.{600000 + rank * 1000}] {head}misc/socket.cc:881 NCCL WARN socketProgress: Connection closed by remote peer node0<4711>"
            )
        elif rank == 10:
            lines.append(
                f"[2026-03-01 09:10:31.000000] {head}transport/net_ib.cc:1880 NCCL WARN NET/IB: Got completion from peer 10.0.0.1<4711> "
                "with status=12 opcode=0 len=0 vendor err 129 (Recv)"
            )
    return "\n".join(lines) + "\n"


def topo_matrix() -> str:
    """8 GPUs, NV18 each, two sockets of four GPUs; NIC0 to 3 beside GPU0 to 3, NIC4, 6, 7 beside 4, 6, 7; GPU5 has none near."""
    gpus, nics = [f"GPU{k}" for k in range(8)], [f"NIC{k}" for k in (0, 1, 2, 3, 4, 6, 7)]
    names = [*gpus, *nics]

    def word(a: str, b: str) -> str:
        if a == b:
            return "X"
        if a.startswith("GPU") and b.startswith("GPU"):
            return "NV18"
        if "GPU5" in (a, b):
            return "SYS"
        if a[3:] == b[3:]:
            return "PIX"
        return "NODE" if (int(a[3:]) < 4) == (int(b[3:]) < 4) else "SYS"

    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a in names:
        numa = ("0-47", "0") if int(a[3:]) < 4 else ("48-95", "1")
        tail = [*numa, "N/A"] if a.startswith("GPU") else ["", "", ""]
        lines.append("\t".join([a, *(word(a, b) for b in names), *tail]).rstrip())
    legend = "\n".join(f"  NIC{n}: mlx5_{n}" for n in (0, 1, 2, 3, 4, 6, 7))
    return "\n".join(lines) + f"\n\nNIC Legend:\n\n{legend}\n"


def topo_xml() -> str:
    """8 GPUs behind an NVSwitch, a PCIe switch each with a NIC; the one above GPU6 runs at Gen1 x1, GPU1 has 12 of 18 NVLinks."""
    rows = ['<system version="1">']
    for numa in range(2):
        rows.append(
            f'<cpu host_hash="0x1" numaid="{numa}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">'
        )
        for k in range(4 * numa, 4 * numa + 4):
            speed, width = ("2.5 GT/s PCIe", 1) if k == 6 else ("32.0 GT/s PCIe", 16)
            rows += [
                f'<pci busid="0000:{k + 1:02x}:00.0" class="0x060400" link_speed="{speed}" link_width="{width}">',
                f'<pci busid="0000:{k + 1:02x}:01.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">',
                f'<gpu dev="{k}" sm="90" rank="{k}" gdr="1"><nvlink target="fffffff:ffff:ff" count="{12 if k == 1 else 18}" tclass="0x068000"/></gpu></pci>',
                f'<pci busid="0000:{k + 1:02x}:10.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">',
                f'<nic><net name="mlx5_{k}" dev="{k}" speed="400000" port="1" maxconn="131072" gdr="1"/></nic></pci></pci>',
            ]
        rows.append("</cpu>")
    return "\n".join([*rows, "</system>"]) + "\n"


def _nccl_tests() -> str:
    """T = 40 us + size / 12 GB/s on 16 ranks of H100: busbw 22.5 GB/s at best, where 300 are expected of 8 NICs of 400 Gb/s."""
    rows = [
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#", "# Using devices",
        *(f"#  Rank {r:2} Group  0 Pid {4000 + r:6} on      node{r // 8} device {r % 8:2} [0000:{r % 8 + 1:02x}:01] NVIDIA H100 80GB HBM3" for r in range(16)),
        "#", "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       ",
    ]  # fmt: skip
    for k in range(10, 34):
        us = 40 + 2**k / 12e3
        rate = 2**k / us / 1e3
        cell = f"{us:8.1f} {rate:7.2f} {rate * 1.875:7.2f}      0"
        rows.append(f"{2**k:12} {2**k // 4:13}     float     sum      -1 {cell} {cell}")
    return "\n".join([*rows, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 9.1", "#", ""])


def _p2p() -> str:
    """p2pBandwidthLatencyTest, 24 GB/s everywhere but 9 GB/s to and from GPU 2."""

    def rate(a: int, b: int) -> str:
        return f"{2500.0 if a == b else 9.0 + 0.1 * b if 2 in (a, b) else 24.0 + 0.1 * a:7.2f}"

    rows = [
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]",
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
    ]
    rows.append("   D\\D" + "".join(f"{b:8}" for b in range(8)))
    rows += [f"{a:6}" + "".join(f" {rate(a, b)}" for b in range(8)) for a in range(8)]
    return "\n".join([*rows, ""])


def healthy(folder: Path) -> Path:
    """One DGX H100: a topology without a fault, an all-reduce at 480 GB/s."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "topo.xml").write_text(
        topo_xml()
        .replace('count="12"', 'count="18"')
        .replace('"2.5 GT/s PCIe" link_width="1"', '"32.0 GT/s PCIe" link_width="16"')
    )
    head = "".join(
        f"#  Rank {r:2} Group  0 Pid {r:6} on      node0 device {r:2} [0000:{r + 1:02x}:01] NVIDIA H100 80GB HBM3\n"
        for r in range(8)
    )
    rows = []
    for k in range(10, 34):
        us = 25 + 2**k / 275e3
        rate = 2**k / us / 1e3
        rows.append(
            f"{2**k:12} {2**k // 4:13}     float     sum      -1 {us:8.1f} {rate:7.2f} {rate * 1.75:7.2f}      0 {us:8.1f} {rate:7.2f} {rate * 1.75:7.2f}      0"
        )
    text = _nccl_tests()
    table = text[text.index("#       size") : text.index("        1024")]
    (folder / "all_reduce.txt").write_text(
        f"# Using devices\n{head}{table}"
        + "\n".join(rows)
        + "\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 180.2\n#\n"
    )
    return folder


def unknown(folder: Path) -> Path:
    """A start that says nothing of its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.log").write_text("a:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nsome words of a program\n")
    return folder


def hostile(folder: Path) -> Path:
    """The faulty job with markup wherever a log lets a stranger write: hosts, settings, messages, names of NICs and files."""
    faulty(folder)
    for file in sorted(folder.iterdir()):
        text = file.read_text()
        text = text.replace("environment to mlx5", f"environment to {HOSTILE}").replace(
            "Cuda failure 'unspecified", f"Cuda failure '{HOSTILE} \u202e unspecified"
        )
        text = text.replace("  NIC1: mlx5_1", f"  NIC1: {HOSTILE}").replace("name=python3", f"name={HOSTILE}")
        file.write_text(text)
    xml = (folder / "topo.xml").read_text().replace('name="mlx5_0"', 'name="&lt;script&gt;alert(4)&lt;/script&gt;"')
    (folder / "topo.xml").write_text(xml)
    (folder / "<img src=x onerror=alert(5)>.log").write_text("node1:9:9 [0] NCCL WARN Cuda failure 'out of memory'\n")
    (folder / "dump.json").write_text(
        json.dumps({"version": "2.4", "entries": [], "pg_config": {HOSTILE: {"name": HOSTILE}}})
    )
    return folder
