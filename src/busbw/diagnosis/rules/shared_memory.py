"""/dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]


def segment_refused(facts: Facts) -> Iterator[Finding]:
    """A shared memory segment cannot be made or extended.

    Fires on NCCL's messages of src/misc/shmutils.cc, whatever error stands with them: an unbacked segment also shows as a CUDA
    "invalid argument" when it is registered. "Socket recv failed" of other ranks follows from it. Attaching to a segment that is not
    there points at a peer that failed, so that alone is weaker. Silent on full disks.
    """
    made = facts.all("nccl.shm_failed", "system.bus_error_shm")
    attached = facts.all("nccl.shm_attach_failed")
    if not made and not attached:
        return
    near = [e for _, e in facts.cuda_errors() if e.file == "shmutils.cc"]
    sizes = facts.all("system.shm_size")
    full = [e for e in made if "no space" in e.text.lower()]
    confidence = 0.93 if full or sizes else (0.85 if made else 0.45)
    yield Finding(
        "shm-too-small", confidence, "fatal", "a shared memory segment could not be made: /dev/shm is full or too small", lines_of([*made[:6], *near[:4], *sizes, *attached[:4], *facts.all("nccl.peer_closed")[:2]]),
        "Give the container 1 GB or more (docker --shm-size=1g or --ipc=host; Kubernetes: emptyDir with medium Memory at /dev/shm); remove leftovers /dev/shm/nccl-*.",
        ["df -h /dev/shm inside the container", "ls -l /dev/shm"],
    )  # fmt: skip


RULES = (segment_refused,)
