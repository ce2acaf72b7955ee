"""When a system is called healthy: something was checked, nothing was found, and no error is left without a reason."""

from __future__ import annotations

import pytest

from .told import told

COMPLETE = "cn17:611:640 [{rank}] NCCL INFO comm 0x5a10 rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1b000 commId 0xa1 - Init COMPLETE"


def verdict(text: str) -> str:
    return told({"job.log": text}).diagnosis.verdict


def test_a_start_that_every_rank_completed_is_healthy():
    assert verdict("\n".join(COMPLETE.format(rank=rank) for rank in (0, 1))) == "healthy"


def test_half_of_a_job_says_nothing_about_the_other_half():
    """One of two ranks completed its start: the other may hang."""
    assert verdict(COMPLETE.format(rank=0)) == "unknown"


def test_one_harmless_line_is_no_proof_of_health():
    assert verdict("cn17:611:640 [0] NCCL INFO NET/IB : No device found.") == "unknown"


@pytest.mark.parametrize(
    "error",
    [
        "cn17:611:640 [0] misc/utils.cc:90 NCCL WARN Duplicate entry in a list that nobody has seen yet",
        "cn17:611:640 [0] transport.cc:110 NCCL WARN No transport found for rank 0[1b000] -> rank 1[1c000]",
        "cn17:611:640 [0] foo.cc:1 NCCL WARN a warning that nobody has seen yet",
        "cn17:611:640 [0] NCCL INFO init.cc:1501 -> 5",
    ],
)
def test_an_error_without_explanation_is_shown_and_no_system_is_healthy_beside_it(error: str):
    """All ranks completed their start, and then something failed that no rule knows."""
    text = "\n".join([*(COMPLETE.format(rank=rank) for rank in (0, 1)), error])
    diagnosis = told({"job.log": text}).diagnosis
    assert diagnosis.verdict == "unknown"
    shown = [line.text for check in diagnosis.checks if check.what == "unexplained" for line in check.evidence]
    assert shown == [error]


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_MIN_NCHANNELS=\N{SUPERSCRIPT TWO}",
        "NCCL_MAX_NCHANNELS=" + "9" * 5000,
        "cn17:611:640 [0] NCCL INFO Setting affinity for GPU 0 to 0-" + "9" * 5000,
        "        GPU0    GPU1\nGPU0     X      NV" + "1" * 5000 + "\nGPU1    NV1      X",
        "The elapsed time of nodes are {a: 1.2.3, b: 2, c: 3}",
    ],
)
def test_a_number_that_is_none_is_no_reason_to_stop(text: str):
    assert verdict(text) in ("healthy", "faulty", "unknown")


def test_four_thousand_messages_of_one_kind_take_no_longer_than_their_number():
    """Rules look at each message a fixed number of times: 4,000 of them are no 16 million comparisons."""
    line = "cn17:611:640 [0] bootstrap.cc:12 NCCL WARN Message truncated : received {n} bytes instead of 4"
    assert verdict("\n".join(line.format(n=n) for n in range(8, 20008))) == "faulty"
