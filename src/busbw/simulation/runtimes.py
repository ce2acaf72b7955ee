"""What a runtime gives the FIFOs of a plan: slots, their size, how messages are cut, and what a byte costs on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from busbw.collectives.plan import Protocol

__all__ = ["NCCL", "WHOLE", "Fifo", "Runtime"]


@dataclass(frozen=True, slots=True)
class Fifo:
    """One kind of FIFO. Raises ValueError for what holds no message."""

    slots: int
    """0: any number."""
    slot_bytes: int | None
    """Payload of one slot; None: a message of any size fits."""
    slots_a_message: int = 1
    """A message is cut into pieces of at most so many slots (NCCL's slices)."""
    slots_a_chunk: int = 1
    """The plan runs tile by tile, so that no message of a tile, before it is cut, is larger than so many slots."""
    wire_bytes_per_byte: float = 1.0
    """Bytes on the wire for one of payload."""
    overhead_s: float = 0.0
    """From when a message's turn comes, and it has its slot, to its first byte: flags, fences, polling."""

    def __post_init__(self) -> None:
        sizes = (self.slots_a_message, self.slots_a_chunk, *([self.slot_bytes] if self.slot_bytes is not None else []))
        if self.slots < 0 or min(sizes) < 1 or self.wire_bytes_per_byte < 1 or self.overhead_s < 0:
            raise ValueError(
                f"a FIFO of {self}: slots from 0, sizes from 1, wire bytes from 1 a byte, overheads from 0"
            )
        if self.slots and self.slots < self.slots_a_message:
            raise ValueError(f"a FIFO of {self.slots} slots holds no message of {self.slots_a_message}")

    @property
    def messages(self) -> int:
        """In flight at most; 0: any number."""
        return self.slots // self.slots_a_message

    @property
    def message_bytes(self) -> int | None:
        """Payload of a message at most."""
        return None if self.slot_bytes is None else self.slot_bytes * self.slots_a_message

    @property
    def chunk_bytes(self) -> int | None:
        """Of a tile at most."""
        return None if self.slot_bytes is None else self.slot_bytes * self.slots_a_chunk


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a plan is run: a FIFO for each protocol. A slot is known to be free one latency after the receiver has emptied it."""

    name: str
    fifos: Mapping[Protocol, Fifo] = field(default_factory=dict)
    nic_gap_s: float = 0.0
    """Least time between two messages of one rank into the network: 1 / message rate of its NIC."""

    def __post_init__(self) -> None:
        if self.nic_gap_s < 0:
            raise ValueError(f"runtime {self.name}: messages {self.nic_gap_s} s apart; write a time from 0 on")

    def fifo(self, protocol: Protocol) -> Fifo:
        """The FIFO of a protocol; one without limits where none is given."""
        return self.fifos.get(protocol, _UNLIMITED)


_UNLIMITED = Fifo(0, None)

_STEPS = 8
"""NCCL_STEPS. Source: NCCL src/include/device.h (5067397)."""

NCCL = Runtime(
    "nccl",
    {
        # NCCL_BUFFSIZE 4 MiB; chunks of 4 slots in slices of 2. Source: NCCL src/init.cc, src/include/collectives.h (5067397).
        Protocol.SIMPLE: Fifo(_STEPS, (4 << 20) // _STEPS, 2, 4),
        # 8 lines x 512 threads x 8 steps x 16 B, of which half is data. Source: NCCL src/include/device.h (5067397).
        Protocol.LL: Fifo(_STEPS, 8 * 512 * 16 // 2, 1, 1, 2.0),
        # 120 x 640 x 8 steps x 8 B, of which 120 of 128 bytes are data. Source: as above.
        Protocol.LL128: Fifo(_STEPS, 120 * 640 * 8 * 120 // 128, 1, 1, 128 / 120),
        # Straight between user buffers: nothing is cut. Source: NCCL src/device/prims_simple.h, Direct (5067397).
        Protocol.ZERO_COPY: Fifo(_STEPS, None),
    },
)
"""NCCL's own buffers; MSCCL and RCCL have the same."""

WHOLE = Runtime("whole")
"""No limits: each instruction moves all its bytes in one message, as a schedule has it."""
