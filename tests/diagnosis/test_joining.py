"""What several files say of one thing: bus ids and ranks, hosts and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbw.diagnosis.rules.shared import bus_number

from .told import told

COMM = "{host}:{pid}:{pid} [{gpu}] NCCL INFO ncclCommInitRankConfig comm 0x55 rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} busId {bus} commId {comm} - Init COMPLETE\n"
XID = "[ 8123.11] NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1234, GPU has fallen off the bus.\n"


def job(comm: str, *hosts: str) -> str:
    """One rank a host, on the GPU at bus 1b."""
    return "".join(
        COMM.format(host=host, pid=100 + i, gpu=0, rank=i, ranks=len(hosts), bus="1b000", comm=comm)
        for i, host in enumerate(hosts)
    )


@pytest.mark.parametrize(("text", "same"), [("1b000", "0000:1b:00.0"), ("41000", "00000000:41:00"), ("10001b000", "1000:1b:00.0")])  # fmt: skip
def test_nccl_and_the_kernel_write_one_place_on_the_bus_differently(text: str, same: str):
    assert bus_number(text) == bus_number(same) is not None


def test_a_fault_of_a_gpu_names_the_rank_that_runs_on_it():
    """dmesg knows the bus id, NCCL's log knows whose it is: the finding has the lines of both, and is surer than dmesg alone."""
    alone = told({"dmesg.txt": XID.format(bus="1b")}).diagnosis.findings[0]
    first = told({"dmesg.txt": XID.format(bus="1b"), "nccl.log": job("0xfeed", "cn31")}).diagnosis.findings[0]
    assert "rank 0" in first.summary
    assert {Path(line.path).name for line in first.lines} == {"dmesg.txt", "nccl.log"}
    assert first.confidence > alone.confidence


def test_a_fault_of_a_gpu_that_the_job_does_not_use_is_less_sure():
    alone = told({"dmesg.txt": XID.format(bus="9c")}).diagnosis.findings[0]
    first = told({"dmesg.txt": XID.format(bus="9c"), "nccl.log": job("0xfeed", "cn31")}).diagnosis.findings[0]
    assert first.summary.endswith("no rank of the job runs on that GPU")
    assert first.confidence < alone.confidence


def test_the_host_of_a_kernel_log_without_names_is_in_its_path():
    """Both hosts have a GPU at that place; the file lies in the folder of one of them."""
    files = {"cn32/dmesg.txt": XID.format(bus="1b"), "nccl.log": job("0xfeed", "cn31", "cn32")}
    assert told(files).diagnosis.findings[0].summary.endswith("rank 1 (cn32) of the job runs on it")
    files = {"dmesg.txt": XID.format(bus="1b"), "nccl.log": job("0xfeed", "cn31", "cn32")}
    assert "of the job" not in told(files).diagnosis.findings[0].summary


def test_findings_say_which_of_two_jobs_they_are_about():
    shm = "cn41:100:120 [0] NCCL WARN Cuda failure 2 'out of memory'\n"
    files = {"old.log": job("0xa", "cn31", "cn32"), "new.log": job("0xb", "cn41", "cn42") + shm}
    assert told(files).diagnosis.findings[0].summary.endswith("[job of 2 processes on cn41, cn42, communicator 0xb]")


def test_one_job_needs_no_name():
    shm = "cn31:100:120 [0] NCCL WARN Cuda failure 2 'out of memory'\n"
    assert "[job" not in told(job("0xa", "cn31", "cn32") + shm).diagnosis.findings[0].summary


def test_communicators_that_share_a_process_are_one_job():
    shm = "cn31:100:120 [0] NCCL WARN Cuda failure 2 'out of memory'\n"
    text = job("0xa", "cn31", "cn32") + job("0xb", "cn31") + shm
    assert "[job" not in told(text).diagnosis.findings[0].summary


def _set(host: str, pid: int, value: int) -> str:
    return f"{host}:{pid}:{pid} [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to {value}.\n"


def test_settings_of_two_jobs_may_differ_and_within_one_may_not():
    """cn31 and cn32 are one job with 22; cn41 and cn42 another with 18, and then one of its hosts with 14."""
    first = job("0xa", "cn31", "cn32") + _set("cn31", 100, 22) + _set("cn32", 101, 22)
    even = job("0xb", "cn41", "cn42") + _set("cn41", 100, 18) + _set("cn42", 101, 18)
    odd = job("0xb", "cn41", "cn42") + _set("cn41", 100, 18) + _set("cn42", 101, 14)
    assert told({"old.log": first, "new.log": even}).diagnosis.findings == []
    (finding,) = told({"old.log": first, "new.log": odd}).diagnosis.findings
    assert finding.kind == "env-mismatch-between-ranks"
    assert {Path(line.path).name for line in finding.lines} == {"new.log"}
