"""Which parts of advice can be typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.reports.commands import parts


def commands(advice: str, *, whole: bool = True) -> list[str]:
    return [part.text for part in parts(advice, whole=whole) if part.is_command]


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("lspci -vv | grep LnkSta on the slow host", ["lspci -vv | grep LnkSta"]),
        ("cat /proc/cmdline; dmesg | grep -i iommu", ["cat /proc/cmdline", "dmesg | grep -i iommu"]),
        ("ibv_devinfo: active_mtu on both hosts; ping -M do -s 8972 PEER (RoCE)", ["ibv_devinfo", "ping -M do -s 8972 PEER"]),
        ("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET and read the lines", ["NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET"]),
        ("grep 'NCCL version' in the log of rank 0", ["grep 'NCCL version'"]),
        ("the log of every rank, sorted by time, before this line", []),
        ("run once with the variable unset", []),
    ],
)  # fmt: skip
def test_a_command_ends_where_prose_begins(advice, expected):
    assert commands(advice) == expected


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("Drain the node, reset the GPUs (nvidia-smi -r) or reboot; replace the board.", ["nvidia-smi -r"]),
        ("Boot with iommu=pt; NCCL_P2P_DISABLE=1 gets a job through meanwhile.", ["NCCL_P2P_DISABLE=1"]),
        ("Set memlock to unlimited (limits.conf, LimitMEMLOCK of slurmd).", []),
        ("Check UCX_TLS and UCX_NET_DEVICES.", []),
        ("Set NCCL_SOCKET_IFNAME=eth0.", ["NCCL_SOCKET_IFNAME=eth0"]),
    ],
)
def test_a_remedy_is_prose_with_commands_in_it(advice, expected):
    assert commands(advice, whole=False) == expected


def test_backticks_say_it_exactly():
    """With them nothing is guessed."""
    assert commands("Run `my_tool --x` on the host, not lspci -vv.") == ["my_tool --x"]
    assert "".join(p.text for p in parts("a `b` c ` d")) == "a b c ` d"


@given(st.text(alphabet="abi `;:().,|'\"=_-AB1\n", max_size=60), st.booleans())
def test_the_parts_are_the_advice(advice, whole):
    """Nothing is lost but pairs of backticks."""
    shown = "".join(part.text for part in parts(advice, whole=whole))
    assert shown.replace("`", "") == advice.replace("`", "")
