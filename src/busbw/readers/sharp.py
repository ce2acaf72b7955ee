"""Log of the SHARP library (libsharp, in-network reduction on InfiniBand switches): jobs, trees, groups, failures.

    [host0:0:2916721 - context.c:589] INFO job (ID: 2838387367436317) resource request quota: ( osts:0 user_data_per_ost:0 ...)
    [host0:0:2916721 - context.c:759] INFO tree_info: type:LLT tree idx:0 treeID:0x0 caps:0x6 quota: ( osts:167 ...)

The library is closed source; wordings from public logs of versions 2.5 to 3.9. SAT trees move large messages, LLT trees small ones.
What the NCCL plugin prints around it, and most failures, are in nccl_log.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template("sharp.job", "job (ID: {job:d}) resource request quota: ({quota:s})", "libsharp context.c", "info"),
    Template(
        "sharp.tree",
        "tree_info: type:{kind:w} tree idx:{tree:d} treeID:{tree_id:x} caps:{caps:x} quota: ({quota:s})",
        "libsharp context.c, 2.5",
        "info",
    ),
    Template(
        "sharp.tree",
        "sharp_job_id:{job:d} resv_key:{key:s}tree_type:{kind:w} tree_idx:{tree:d} treeID:{tree_id:x} caps:{caps:x} quota:({quota:s})",
        "libsharp context.c, 3.x",
        "info",
    ),
    Template(
        "sharp.group",
        "[group#:{group:d}] job_id:{job:d} group id:{group_id:x} tree idx:{tree:d} tree_type:{kind:w} rail_idx:{rail:d} group size:{size:d}",
        "libsharp comm.c, 3.x",
        "info",
    ),
    Template(
        "sharp.group",
        "[group#:{group:d}] group id:{group_id:x} tree idx:{tree:d} tree_type:{kind:w} rail_idx:{rail:d} group size:{size:d}",
        "libsharp comm.c, 2.x",
        "info",
    ),
    Template(
        "sharp.manager_misplaced",
        "FabricProvider must bind to port with master SM",
        "sharp_am, closed source; public logs of 3.x",
        "error",
    ),
    Template("sharp.manager_failed", "~LoadFabric critical error{rest:s}", "sharp_am", "error"),
    Template("sharp.failed", "ERROR sharp_{function:w} failed: {error:s}", "libsharp", "error"),
)


class SharpReader(Lines):
    """Messages of libsharp."""

    name = "sharp"
    templates: Sequence[Template] = TEMPLATES


READER = SharpReader()
