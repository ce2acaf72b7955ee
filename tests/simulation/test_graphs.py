"""Task graphs: times by hand, and files as others write them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.errors import InputError
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import Conditions, read_graph, simulate, task_program
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
    with pytest.raises(ValueError, match="has slots, which GOAL does not say; it has plain messages"):
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
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "barrier", "after": 5}]}', "after is 5; write a list"),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": ["barrier"]}]}', "is unknown"),
        (
            '{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "multicast", "to": [99999999999999999999], "bytes": 1}]}',
            "write a list of ranks",
        ),
        ('{"schema": 1, "ranks": 2, "tasks": []}', "no tasks"),
        ("num_ranks 1\nrank 0 {\n}\n", "no tasks"),
        (
            '{"schema": 1, "ranks": 99999999999, "tasks": [{"id": 1, "rank": 0, "kind": "barrier"}]}',
            "99,999,999,999 ranks",
        ),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "compute", "time_s": NaN}]}', "time_s is nan"),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "compute", "time_s": 1e30}]}', r"from 0 to 9.2e\+06"),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "transfer", "to": 1, "bytes": 1.5}]}', "whole number"),
        ('{"schema": 1, "tasks": [{"id": 1, "rank": 0, "kind": "transfer", "to": 0, "bytes": 1}]}', "sends to itself"),
        ("{", "no JSON"),
    ],
)
def test_a_file_that_is_no_graph_says_where_and_why(tmp_path, text, said):
    """With the line where there is one."""
    file = tmp_path / "x.goal"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_graph(file)


@pytest.mark.parametrize(
    ("tasks", "ranks", "said"),
    [
        ((compute("a", 9e6), compute("b", 9e6, "a")), 4, "compute 1.8e"),
        ((transfer("a", 0, 1, 3 << 60), transfer("b", 0, 1, 3 << 60, "a")), 4, "too long"),
        ((compute("a", 1e-6, rank=4),), 5, "5 ranks, the cluster 4"),
    ],
)
def test_a_graph_that_the_clock_or_the_cluster_does_not_hold_is_refused(tmp_path, tasks, ranks, said):
    """int64 picoseconds end after 106 days: 2 x 9e6 s, and 2 x 3.5e18 B at 50 GB/s, are more."""
    with pytest.raises(InputError, match=said):
        simulate(graph_of(tmp_path, *tasks, ranks=ranks), STAR)


def test_a_device_is_no_file_of_a_graph():
    """/dev/zero has no end."""
    with pytest.raises(InputError, match="/dev/zero: no file"):
        read_graph(Path("/dev/zero"))


def tree(kind, name, rank, to, size, *after):
    return {"id": name, "rank": rank, "kind": kind, "to": to, "bytes": size, "after": list(after)}


def test_a_multicast_and_a_sum_load_each_link_once(tmp_path):
    """Through one switch, each of 50 kB: 1 us and 2 L, whatever the number of members; the second waits for the first."""
    graph = graph_of(
        tmp_path, tree("multicast", "a", 0, [1, 2, 3], 50_000), tree("reduce", "b", 3, [0, 1, 2], 50_000, "a")
    )
    found = simulate(graph, STAR)
    assert found.time_s == pytest.approx(2 * (1e-6 + 2 * L), rel=1e-6)
    assert len(found.link_bytes()[0]) == 7, "nothing comes down to rank 0"


def test_a_slow_rank_computes_longer_and_is_delayed_as_long(tmp_path):
    """Half speed: 3 us of computing take 6, 2 us of delay take 2, a barrier none."""
    delay = {"id": "b", "rank": 0, "kind": "delay", "time_s": 2e-6, "after": ["a"]}
    meet = {"id": "c", "rank": 1, "kind": "barrier", "after": ["a", "b"]}
    graph = graph_of(tmp_path, compute("a", 3e-6), delay, meet)
    assert simulate(graph, STAR).time_s == pytest.approx(5e-6)
    assert simulate(graph, STAR, conditions=Conditions(slow_ranks={0: 0.5})).time_s == pytest.approx(8e-6)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ([], "at least one other rank"),
        ([0], "at least one other rank"),
        ([9], "rank 9 is not there"),
        (1, "a list of ranks"),
    ],
)
def test_members_that_cannot_be_are_one_error(tmp_path, to, said):
    """None, oneself, a rank that is not there, no list."""
    with pytest.raises(InputError, match=said):
        simulate(graph_of(tmp_path, tree("multicast", "a", 0, to, 8)), STAR)
