"""Who failed first: NCCL src/misc/socket.cc, src/bootstrap.cc."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

HOSTS = """
    cn31:100:100 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.31<0>
    cn32:200:200 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.32<0>
    cn33:300:300 [0] NCCL INFO Bootstrap : Using eth0:10.1.0.33<0>
"""
CLOSED = "misc/socket.cc:57 NCCL WARN Net : Connection closed by remote peer"

CASES = (
    fires("host_named_by_the_others", "peer-process-died", HOSTS + f"""
    > cn32:200:220 [0] {CLOSED} 10.1.0.31<41022>
    > cn33:300:320 [0] {CLOSED} 10.1.0.31<41023>
    > cn31:100:120 [0] nobody.cc:1 NCCL WARN Nobody knows this message
"""),
    fires("host_named_by_the_others", "peer-process-died", HOSTS + f"""
    > cn33:300:320 [0] {CLOSED} 10.1.0.32<41023>
    > cn32:200:220 [0] {CLOSED} cn31.cluster<41022>
    > cn31:100:120 [0] nobody.cc:1 NCCL WARN Nobody knows this message
""".replace("    > cn33:300:320", "    cn33:300:320"), why="a chain: who is named and names nobody"),
    near_miss("host_named_by_the_others", "they accuse each other", HOSTS + f"""
    cn32:200:220 [0] {CLOSED} 10.1.0.31<41022>
    cn31:100:120 [0] {CLOSED} 10.1.0.32<41023>
"""),
    near_miss("host_named_by_the_others", "nobody knows whose address it is", HOSTS + f"""
    cn32:200:220 [0] {CLOSED} 10.9.9.9<41022>
"""),
    fires("only_one_has_an_error_of_its_own", "peer-process-died", f"""
    > cn32:200:220 [0] {CLOSED} 10.1.0.31<41022>
    > cn33:300:320 [0] {CLOSED} 10.1.0.31<41023>
    > cn31:100:120 [0] nobody.cc:1 NCCL WARN Nobody knows this message
"""),
    near_miss("only_one_has_an_error_of_its_own", "two processes fail by themselves, and nobody knows when", f"""
    cn32:200:220 [0] {CLOSED} 10.1.0.31<41022>
    cn33:300:320 [0] nobody.cc:1 NCCL WARN Nobody knows this message either
    cn31:100:120 [0] nobody.cc:1 NCCL WARN Nobody knows this message
"""),
    near_miss("only_one_has_an_error_of_its_own", "nobody lost a peer", """
    cn31:100:120 [0] nobody.cc:1 NCCL WARN Nobody knows this message
"""),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
