"""Exports of Nsight Systems for tests: the tables of NVIDIA's SQLite schema reference (schema 3.28.1), with the rows that a test wants."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER",
    "TARGET_INFO_NIC_INFO": "GUID INTEGER NOT NULL, stateName TEXT NOT NULL, nicId INTEGER NOT NULL, name TEXT NOT NULL, deviceId INTEGER NOT NULL, vendorId INTEGER NOT NULL, linkLayer INTEGER NOT NULL",
    "NIC_ID_MAP": "nicId INTEGER NOT NULL, globalId INTEGER NOT NULL",
    "TARGET_INFO_NETWORK_METRICS": "metricsListId INTEGER NOT NULL, metricsIdx INTEGER NOT NULL, name TEXT NOT NULL, description TEXT NOT NULL, unit TEXT NOT NULL",
    "NET_NIC_METRIC": "start INTEGER NOT NULL, end INTEGER NOT NULL, globalId INTEGER NOT NULL, portId INTEGER NOT NULL, metricsListId INTEGER NOT NULL, metricsIdx INTEGER NOT NULL, value INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, eventId INTEGER, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER",
    "NVTX_EXPORT_TRANSLATION": "originalName TEXT NOT NULL, sanitizedName TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL, graphExecId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
}  # fmt: skip
"""Tables that the reader asks for, by the documented columns; those that it has no use for left out here and there, as versions do."""
EPOCH_NS = 1_753_747_272_000_000_000
DOMAIN, INIT, ALL_GATHER, ALL_REDUCE, SEND, RECEIVE = 1, 16777218, 16777220, 16777223, 16777226, 16777225
_COMM, _BYTES, _PEER = ("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)
PAYLOADS = {
    INIT: [_COMM, ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
    ALL_GATHER: [_COMM, _BYTES],
    ALL_REDUCE: [_COMM, _BYTES, ("Reduction operation", 16777232, 16)],
    SEND: [_COMM, _BYTES, _PEER],
    RECEIVE: [_COMM, _BYTES, _PEER],
}
"""Fields, types and offsets as an export of release 2026.2 of a job with NCCL has them; NCCL, src/include/nvtx_payload_schemas.h."""


def global_pid(pid: int) -> int:
    """A process as exports write it: hardware, VM, process, thread in 8, 8, 24 and 24 bits."""
    return (1 << 56 | pid << 24) & (1 << 63) - 1


class Export:
    """An export in the making. Times in ns of the session."""

    def __init__(self, *without: str, blobs: bool = True) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("PRAGMA page_size = 512")
        self.without = set(without)
        self.blobs = blobs
        self.strings: dict[str, int] = {}
        self.correlation = 0
        for table, columns in SCHEMA.items():
            if table not in self.without:
                self.connection.execute(f"CREATE TABLE {table} ({columns})")
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION_MAJOR", value="3")
        self.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        self.row(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=0,
            devStateName="Local (CLI)",
            name="DeviceEnvironment",
            nameEnum=1,
            value="CLUSTER_TOKEN=not-to-be-read",
        )
        self.row(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=0,
            devStateName="Local (CLI)",
            name="Hostname",
            nameEnum=2,
            value="node7",
        )
        for schema, fields in PAYLOADS.items():
            for index, (name, kind, offset) in enumerate(fields):
                self.row(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=DOMAIN,
                    schemaId=schema,
                    idx=index,
                    type=kind,
                    name=name,
                    offset=offset or None,
                )

    def row(self, table: str, **values: Any) -> None:
        if table in self.without:
            return
        for column in SCHEMA[table].split(", "):
            name = column.split()[0]
            if "NOT NULL" in column and name not in values:
                values[name] = 0 if "INTEGER" in column else ""
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.row("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def launch(self, pid: int, at: int, thread: int = 1) -> int:
        self.correlation += 1
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=at,
            end=at + 1000,
            globalTid=global_pid(pid) + thread,
            correlationId=self.correlation,
            nameId=self.string("cudaLaunchKernelExC_v11060"),
        )
        return self.correlation

    def kernel(
        self,
        name: str,
        begin: int,
        end: int,
        *,
        pid: int = 100,
        device: int = 0,
        stream: int = 7,
        launched: int | None = None,
    ) -> None:
        correlation = None if launched is None else self.launch(pid, launched)
        self.row(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=begin, end=end, deviceId=device, contextId=1, streamId=stream, correlationId=correlation, globalPid=global_pid(pid),
            demangledName=self.string(name), shortName=self.string(name.partition("(")[0]), gridX=1,
        )  # fmt: skip

    def range(
        self,
        name: str,
        begin: int,
        end: int,
        *,
        pid: int = 100,
        thread: int = 1,
        schema: int | None = None,
        said: tuple[int, ...] = (),
        domain: int = 0,
    ) -> None:
        blob = None
        if schema is not None and self.blobs:
            size = max(offset for _, _, offset in PAYLOADS[schema]) + 8
            payload = bytearray(size)
            for value, (_, kind, offset) in zip(said, PAYLOADS[schema], strict=False):
                struct.pack_into("<Q" if kind in (18, 22) else "<i", payload, offset, value)
            blob = struct.pack("<QQQQ", DOMAIN, schema, size, 32 + size) + bytes(payload)
        registered = name.startswith("nccl")
        self.row(
            "NVTX_EVENTS", start=begin, end=end, eventType=59, text=None if registered else name, textId=self.string(name) if registered else None,
            globalTid=global_pid(pid) + thread, domainId=DOMAIN if registered else domain, binaryData=blob,
        )  # fmt: skip

    def bytes(self) -> bytes:
        """The file. Written in one piece, so that the same calls give the same bytes."""
        self.connection.commit()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "export.sqlite"
            self.connection.execute("VACUUM INTO ?", (str(file),))
            return file.read_bytes()


def two_ranks(*without: str, blobs: bool = True) -> Export:
    """Two processes with a GPU each, a communicator of both, two steps: a product, an all-reduce of 1 MiB, an all-gather of 4 KiB a rank, a copy; then a pair of messages."""
    made = Export(*without, blobs=blobs)
    for rank, pid in enumerate((100, 101)):
        late = 3000 * rank
        made.range("ncclCommInitRank", 0, 900, pid=pid, schema=INIT, said=(0xABC, 2, rank, 0))
        for step in range(2):
            at = 100_000 * (step + 1)
            made.range(f"step {step}", at, at + 90_000, pid=pid)
            made.kernel(
                "void gemm<float>(float*)", at + 5000, at + 25_000 + late, pid=pid, device=rank, launched=at + 1000
            )
            made.range("ncclAllReduce", at + 2000, at + 4000, pid=pid, schema=ALL_REDUCE, said=(0xABC, 1 << 20))
            made.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
                at + 26_000 + late,
                at + 60_000,
                pid=pid,
                device=rank,
                stream=20,
                launched=at + 3000,
            )
            made.range("ncclAllGather", at + 5000, at + 7000, pid=pid, schema=ALL_GATHER, said=(0xABC, 4096))
            made.kernel(
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
                at + 61_000,
                at + 65_000,
                pid=pid,
                device=rank,
                stream=20,
                launched=at + 6000,
            )
            made.row(
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                start=at + 66_000,
                end=at + 70_000,
                deviceId=rank,
                contextId=1,
                streamId=7,
                globalPid=global_pid(pid),
                bytes=4096,
                copyKind=2,
            )
            made.row(
                "CUPTI_ACTIVITY_KIND_MEMSET",
                start=at + 70_000,
                end=at + 71_000,
                deviceId=rank,
                contextId=1,
                streamId=7,
                globalPid=global_pid(pid),
                bytes=64,
            )
        made.range("ncclGroupStart", 300_000, 300_100, pid=pid)
        made.range("ncclSend", 300_200, 300_300, pid=pid, schema=SEND, said=(0xABC, 2048, 1 - rank))
        made.range("ncclRecv", 300_400, 300_500, pid=pid, schema=RECEIVE, said=(0xABC, 2048, 1 - rank))
        made.range("ncclGroupEnd", 300_600, 300_900, pid=pid)
        made.kernel(
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            301_000,
            303_000,
            pid=pid,
            device=rank,
            stream=21,
            launched=300_700,
        )
    made.row(
        "TARGET_INFO_NIC_INFO",
        GUID=1,
        stateName="Local",
        nicId=0,
        name="mlx5_0",
        deviceId=1,
        vendorId=5555,
        linkLayer=1,
    )
    made.row("NIC_ID_MAP", nicId=0, globalId=77)
    for index, name in enumerate(("IB: Bytes sent", "IB: Bytes received")):
        made.row("TARGET_INFO_NETWORK_METRICS", metricsListId=3, metricsIdx=index, name=name, unit="B")
        made.row(
            "NET_NIC_METRIC",
            start=100_000,
            end=200_000,
            globalId=77,
            portId=1,
            metricsListId=3,
            metricsIdx=index,
            value=1000 + index,
        )
    return made


if __name__ == "__main__":  # how fixtures/nsight/two_ranks.sqlite was made: python -m tests.readers.nsight_export
    file = Path(__file__).parent / "fixtures" / "nsight" / "two_ranks.sqlite"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(two_ranks().bytes())
