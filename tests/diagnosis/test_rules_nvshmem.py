"""NVSHMEM's messages as its reader names them."""

from __future__ import annotations

import pytest

from .told import Case, Row, check, fires_on, near_miss_on, row, shown


def said(event: str, mark: bool = True) -> list[Row]:
    return [(shown if mark else row)("events", event=event, level="error", text=event, fields={})]


CASES = (
    fires_on("said_by_nvshmem", "plugin-library-version-mismatch", {"nvshmem.log": said("nvshmem.version_mismatch")}, severity="fatal"),
    fires_on("said_by_nvshmem", "env-mismatch-between-ranks", {"nvshmem.log": said("nvshmem.pes_uneven")}, severity="fatal"),
    fires_on("said_by_nvshmem", "roce-gid-index", {"nvshmem.log": said("nvshmem.address_handle_failed")}),
    near_miss_on("said_by_nvshmem", "a transport gives way to another one", {"nvshmem.log": said("nvshmem.transport_skipped", mark=False)}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
