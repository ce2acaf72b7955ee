"""Task graphs: times by hand, and files as others write them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.errors import InputError
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import read_graph, simulate, task_program
from busbw.simulation.formats.goal import read_goal, write_goal

B, L = 50e9, 1e-6
STAR = SingleSwitch(4, LinkRates(B, B, 0.0, L))

PING_PONG = """// written after the grammar of LogGOPSim
num_ranks 2

rank 0 {
l1: calc 1000 cpu 0
l2: send 50000b to 1 tag 7 cpu 0 nic 0
l3: recv 50000b from 1 tag 8
l2 requires l1
l3 requires l2
}
rank 1 {
l1: recv 50000b from 0 tag 7
l2: send 50000b to 0 tag 8
l2 requires l1
}
"""


def graph_of(tmp_path, *tasks, ranks=4):
    """The graph of a JSON file."""
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"schema": 1, "ranks": ranks, "tasks": list(tasks)}))
    return read_graph(file)


def compute(name, time_s, *after, rank=0):
    return {"id": name, "rank": rank, "kind": "compute", "time_s": time_s, "after": list(after)}


def transfer(name, src, dst, size, *after):
    return {"id": name, "rank": src, "kind": "transfer", "to": dst, "bytes": size, "after": list(after)}


def test_a_chain_takes_the_sum_of_its_tasks(tmp_path):
    """Compute 3 us, send 50 kB (1 us and 2 L), compute 4 us."""
    graph = graph_of(tmp_path, compute("a", 3e-6), transfer("b", 0, 1, 50_000, "a"), compute("c", 4e-6, "b", rank=1))
    assert simulate(graph, STAR).time_s == pytest.approx(3e-6 + 1e-6 + 2 * L + 4e-6)


def test_tasks_that_may_run_run_at_once_and_share_links(tmp_path):
    """Two messages into rank 2: twice the time; what follows both waits for the later."""
    graph = graph_of(
        tmp_path, transfer("a", 0, 2, 50_000), transfer("b", 1, 2, 50_000), compute("c", 1e-6, "a", "b", rank=2)
    )
    assert simulate(graph, STAR).time_s == pytest.approx(2e-6 + 2 * L + 1e-6)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ring_all_reduce", (8,)), ("recursive_doubling_all_reduce", (8,)), ("direct_all_to_all", (7,)), ("bruck_all_to_all", (8,)),
        ("binomial_broadcast", (5,)), ("double_binary_tree_all_reduce", (8,)), ("pairwise_all_to_all", (8,)), ("hierarchical_all_reduce", (2, 4)),
    ],
)  # fmt: skip
def test_a_schedule_written_as_goal_takes_as_long_as_the_schedule(name, shape):
    """On a star of 8 ports; to the picosecond, since the graph waits where the schedule does. A prime number of bytes: sizes are rounded alike."""
    star = SingleSwitch(8, LinkRates(B, B, 0.0, L))
    bound = LIBRARY[name]().bind(*shape)
    graph = read_goal("\n".join(write_goal(task_program(bound, 100_003))), "x.goal")
    assert simulate(graph, star).time_s == simulate(bound, star, size_bytes=100_003).time_s > 0


def test_what_goal_has_no_word_for_is_refused():
    with pytest.raises(ValueError, match="has slots, a weight or a rate"):
        write_goal(
            replace(
                pair := task_program(LIBRARY["ring_send_recv"]().bind(2), 8),
                channels=(replace(pair.channels[0], slots=2),),
            )
        )


def test_a_send_and_a_receive_of_two_sizes_do_not_meet_in_silence(tmp_path):
    """Line 6 sends 50000 bytes with tag 7; line 12 waits for fewer."""
    file = tmp_path / "odd.goal"
    file.write_text(PING_PONG.replace("l1: recv 50000b from 0 tag 7", "l1: recv 4096b from 0 tag 7"))
    with pytest.raises(
        InputError, match=r"odd.goal:12: rank 1 l1 waits for 4096 bytes .*odd.goal:6: rank 0 l2, has 50000"
    ):
        read_graph(file)


def test_goal_text(tmp_path):
    """calc 1 us, there 1 us + 2 L, back 1 us + 2 L."""
    file = tmp_path / "ping_pong.goal"
    file.write_text(PING_PONG)
    graph = read_graph(file)
    assert len(graph) == 5
    assert simulate(graph, SingleSwitch(2, LinkRates(B, B, 0.0, L))).time_s == pytest.approx(3e-6 + 4 * L)


def test_a_cycle_is_named(tmp_path):
    """Each task of it, in order."""
    with pytest.raises(InputError, match=r"graph.json: the graph has a cycle: (a -> b -> c|b -> c -> a|c -> a -> b)"):
        graph_of(tmp_path, compute("a", 1, "c"), compute("b", 1, "a"), compute("c", 1, "b"), compute("d", 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_ranks 1\nrank 0 {\nl1: recv 1b from 0 tag 3\n}\n", "never sent"),
        ("num_ranks 2\nrank 0 {\nl1: send 1b to 1 tag 3\n}\nrank 1 {\n}\n", "nobody receives"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5\n", "looks cut"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5\nl2 requires l1\n}\n", r"x.goal:4: no operation l2"),
        ("hello\n", r"x.goal:1: 'hello' stands outside"),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "dance"}]}', "kind 'dance' is unknown"),
        (
            '{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "compute", "time_s": 1, "after": [9]}]}',
            "comes after 9",
        ),
        (
            '{"schema": 1, "ranks": 1, "tasks": [{"id": 1, "rank": 4, "kind": "compute", "time_s": 1}]}',
            "rank 4 is not there",
        ),
        ('{"schema": 2}', "no task graph"),
        ("{", "no JSON"),
    ],
)
def test_a_file_that_is_no_graph_says_where_and_why(tmp_path, text, said):
    """With the line where there is one."""
    file = tmp_path / "x.goal"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_graph(file)


def test_a_device_is_no_file_of_a_graph():
    """/dev/zero has no end."""
    with pytest.raises(InputError, match="/dev/zero: no file"):
        read_graph(Path("/dev/zero"))
