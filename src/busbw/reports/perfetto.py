"""A timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open: a process a rank, a thread a stream or channel.

Format: "Trace Event Format" (Google, 2016): complete events, ph X, times in microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path

from busbw.simulation import Timeline, written_out

__all__ = ["write_perfetto"]

_US = 1e-6


def write_perfetto(timeline: Timeline, path: Path) -> int:
    """Writes the tasks of a recorded run; how many there were. One rank an orbit where the run was folded.

    Raises InputError where tasks were not recorded.
    """
    tasks, expansion, program = written_out(timeline), timeline.expansion, timeline.program
    ranks = sorted({int(rank) for rank in expansion.stream_rank})
    written = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        named = [
            {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": timeline.network.rank_name(rank)}}
            for rank in ranks
        ]
        file.write(",\n".join(json.dumps(one) for one in named))
        for row in range(len(tasks)):
            begin, end, channel = int(tasks.begin_ps[row]), int(tasks.end_ps[row]), int(tasks.channel[row])
            if begin < 0 or end < 0:
                continue
            if channel < 0:
                stream = int(tasks.stream[row])
                pid, thread, name = (
                    int(expansion.stream_rank[stream]),
                    program.streams[int(expansion.stream_name[stream])].name,
                    "computing",
                )
                more = {}
            else:
                pid, other = int(expansion.src_rank[channel]), int(expansion.dst_rank[channel])
                thread = program.channels[int(expansion.channel_name[channel])].name
                name = f"to rank {other}"
                link = int(tasks.bottleneck[row])
                number = int(expansion.link[link]) if link >= 0 else -1
                limit = timeline.network.link_name(number) if number >= 0 else "none"
                more = {"bytes": int(tasks.size_bytes[row]), "limited by": limit}
            event = {
                "name": name,
                "ph": "X",
                "ts": begin * _US,
                "dur": (end - begin) * _US,
                "pid": pid,
                "tid": thread,
                "args": more,
            }
            file.write(",\n" + json.dumps(event))
            written += 1
        file.write("\n]}\n")
    return written
