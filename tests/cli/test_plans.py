"""`busbw verify`, `convert` and `show`: what is printed, and the exit status."""

from __future__ import annotations

import json

import pytest

from busbw.collectives.algorithms import LIBRARY, ring_all_reduce
from busbw.collectives.exchange.busbw_json import write_busbw_json
from busbw.collectives.exchange.files import _LISTED_BYTES
from busbw.collectives.exchange.msccl_xml import write_msccl_xml
from busbw.collectives.exchange.targets import TARGETS
from busbw.collectives.lowering import plan_of
from busbw.collectives.schedule_json import to_json
from busbw.collectives.work import most_operations


@pytest.fixture
def ring(tmp_path):
    """A ring of three ranks, all_reduce in place, as XML for RCCL."""
    plan = plan_of(ring_all_reduce().bind(3), in_place=True)
    path = tmp_path / "ring.xml"
    path.write_text(write_msccl_xml(plan, TARGETS["rccl"])[0])
    return path


def test_a_legal_plan_ends_with_status_0(busbw, ring):
    ran = busbw("verify", ring)
    assert ran.status == 0
    assert ": legal, same bits on all ranks: all_reduce on 3 ranks as rccl reads it" in ran.out


def test_a_wrong_plan_ends_with_status_1_and_shows_the_steps(busbw, ring):
    """The receives of rank 0 come from a FIFO that nobody fills: everybody waits."""
    ring.write_text(ring.read_text().replace('type="s"', 'type="cpy"'))
    ran = busbw("verify", ring)
    assert ran.status == 1
    assert "deadlock" in ran.out and " 1  rank 0 block 0 row" in ran.out
    told = json.loads(busbw("verify", ring, "--json").out)
    assert told["schema"] == 1 and not told["plans"][0]["legal"]
    assert told["plans"][0]["violations"][0]["steps"][0]["rank"] == 0


def test_a_file_that_holds_no_plan_is_wrong_use_but_does_not_stop_the_others(busbw, ring, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert busbw("verify", tmp_path / "notes.txt").status == 2
    ran = busbw("verify", tmp_path / "notes.txt", ring)
    assert ran.status == 2 and "no plan" in ran.err and "legal" in ran.out


def test_a_plan_goes_from_format_to_format(busbw, ring, tmp_path):
    ours, back, goal = tmp_path / "ring.json", tmp_path / "back.xml", tmp_path / "ring.goal"
    assert busbw("convert", ring, ours).status == 0
    assert busbw("convert", ours, back, "--target", "rccl").status == 0
    assert back.read_text() == ring.read_text()
    assert busbw("convert", ring, goal, "--bytes", "12KiB").status == 0
    assert goal.read_text().startswith("num_ranks 3\nrank 0 {\nl1: send 4096b to 1 tag 0 cpu 0\n")
    for words, said in (
        ((goal,), "needs --bytes"),
        ((goal, "--bytes", "much"), "--bytes much"),
        ((tmp_path / "ring.txt",), "give --to: there are msccl-xml"),
    ):
        ran = busbw("convert", ring, *words)
        assert ran.status == 2 and said in ran.err


def test_sends_become_puts_for_mscclpp_which_xml_cannot_say(busbw, ring, tmp_path):
    plan = tmp_path / "plan.json"
    assert busbw("convert", ring, plan, "--to", "mscclpp", "--ranks-per-node", "2").status == 0
    assert '"port"' in plan.read_text() and busbw("verify", plan).status == 0
    ran = busbw("convert", plan, tmp_path / "plan.xml", "--target", "rccl")
    assert ran.status == 2 and not (tmp_path / "plan.xml").exists()
    assert "target-cannot-say: rccl can't say PUT" in ran.err
    assert ran.err.count("target-cannot-say") == 8 and "more" in ran.err.splitlines()[-1]


def test_a_plan_is_summed_up_and_drawn(busbw, ring, tmp_path):
    drawing = tmp_path / "ring.svg"
    ran = busbw("show", ring, "--svg", drawing)
    assert ran.status == 0 and "ring of 3, 3 links" in ran.out
    text = drawing.read_text()
    assert text.startswith("<svg") and text.count("<circle") == 3 and "channel 0: ring of 3" in text
    assert json.loads(busbw("show", ring, "--json").out)["channels"] == [
        {"channel": 0, "shape": "ring of 3", "edges": [[0, 1], [1, 2], [2, 0]]}
    ]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("binomial_broadcast", "tree of 4"),
        ("binary_tree_all_reduce", "both ways along a tree of 4"),
        ("direct_all_to_all", "all to all of 4"),
    ],
)
def test_shapes_have_names(busbw, tmp_path, name, shape):
    path = tmp_path / "plan.json"
    path.write_text(write_busbw_json(plan_of(LIBRARY[name]().bind(4))))
    assert json.loads(busbw("show", path, "--json").out)["channels"][0]["shape"] == shape


@pytest.fixture
def schedule(tmp_path):
    """Writes a schedule of the library, its axes left open."""

    def written(name):
        path = tmp_path / f"{name}.json"
        path.write_text(to_json(LIBRARY[name]()))
        return path

    return written


def test_a_schedule_is_checked_as_schedule_and_as_plan(busbw, schedule):
    """A ring of 4: each rank copies its input and runs two loops over 3 steps of a send and a receive: 4 x (1 + 2 + 12) instructions."""
    ran = busbw("verify", schedule("ring_all_reduce"), "--bind", "r=4")
    assert ran.status == 0
    assert "schedule legal: ring_all_reduce with r=4" in ran.out
    assert "plan legal, same bits on all ranks: all_reduce on 4 ranks as busbw reads it, 60 instructions" in ran.out


def test_sizes_that_a_schedule_leaves_open_are_asked_for_by_name(busbw, schedule):
    path = schedule("hierarchical_all_reduce")
    ran = busbw("verify", path)
    assert ran.status == 2 and "is for any size of node, gpu; say which: --bind node=N,gpu=N" in ran.err
    assert busbw("verify", path, "--bind", "node=2", "--bind", "gpu=2").status == 0
    assert "knows no x: axes node, gpu" in busbw("verify", path, "--bind", "node=2,gpu=2,x=1").err
    assert "a size is a whole number" in busbw("verify", path, "--bind", "node=two").err


def test_sizes_are_bound_in_schedules_only(busbw, ring):
    assert "can be bound in a schedule only" in busbw("verify", ring, "--bind", "r=3").err


def test_a_wrong_schedule_breaks_its_own_rules_and_the_plans(busbw, schedule):
    """A ring whose second half is left out leaves sums on one rank each: chunks miss contributors, and so do the plan's outputs."""
    path = schedule("ring_all_reduce")
    document = json.loads(path.read_text())
    document["body"]["seq"].pop()
    path.write_text(json.dumps(document))
    ran = busbw("verify", path, "--bind", "r=3")
    assert ran.status == 1
    assert "schedule wrong" in ran.out and "wrong-contributors" in ran.out
    assert "plan wrong" in ran.out and "wrong-result" in ran.out
    (told,) = json.loads(busbw("verify", path, "--bind", "r=3", "--json").out)["plans"]
    assert not told["legal"] and not told["schedule"]["legal"] and told["schedule"]["sizes"] == {"r": 3}


def test_a_schedule_is_shown_and_converted_like_a_plan(busbw, schedule, tmp_path):
    path, xml = schedule("ring_all_reduce"), tmp_path / "out.xml"
    assert "ring of 3, 3 links" in busbw("show", path, "--bind", "r=3").out
    assert busbw("convert", path, xml, "--bind", "r=3").status == 0
    assert busbw("verify", xml).status == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2 of a schedule is not known"),
        ({"body": {"seq": [{"x": 1}]}}, "lacks 'move'"),
        ({"chunks": "$x"}, "uses x, which means nothing here"),
        ({"kind": "all_shuffle"}, "is no collective"),
        (
            {"body": {"pipeline": 0, "do": {"move": [["r"], [["mod", ["add", "r", 1], "|r|"]]], "from": ["data", 0]}}},
            "zero",
        ),
    ],
)
def test_a_damaged_schedule_is_one_clear_error(busbw, schedule, change, said):
    path = schedule("ring_all_reduce")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    ran = busbw("verify", path, "--bind", "r=3")
    assert ran.status == 2 and said in ran.err


@pytest.mark.parametrize(
    ("output", "given"),
    [
        ("x.xml", ("--bytes", "1MiB")),
        ("x.xml", ("--ranks-per-node", 2)),
        ("x.goal", ("--bytes", "1MiB", "--ranks-per-node", 2)),
        ("x.goal", ("--bytes", "1MiB", "--to", "goal", "--target", "rccl")),
    ],
)
def test_what_the_format_has_no_use_for_is_refused(busbw, ring, tmp_path, output, given):
    """An option that would change nothing was meant to change something."""
    ran = busbw("convert", ring, tmp_path / output, *given)
    assert ran.status == 2 and given[-2] in ran.err and not (tmp_path / output).exists()


def test_json_names_the_files_that_held_no_plan(busbw, ring, tmp_path):
    """One unreadable file among others does not stop the run, and is not lost: a plan that nobody checked does not pass."""
    missing = tmp_path / "missing.xml"
    ran = busbw("verify", ring, missing, "--json")
    told = json.loads(ran.out)
    assert (ran.status, len(told["plans"])) == (2, 1)
    (unread,) = told["unread"]
    assert unread["file"] == str(missing) and "no such file" in unread["reason"]


def test_a_runtime_without_its_release_is_the_one_that_the_file_is_for(busbw, tmp_path):
    """MSCCL++ plans of the first and of the second kind: `mscclpp` reads both, and writes for the newest."""
    schedule, second, first = (tmp_path / name for name in ("schedule.json", "second.json", "first.json"))
    schedule.write_text(to_json(LIBRARY["ring_all_gather"]()))
    assert busbw("convert", schedule, second, "--target", "mscclpp", "--bind", "r=4").status == 0
    assert busbw("convert", schedule, first, "--target", "mscclpp-0.7", "--bind", "r=4").status == 0
    for plan in (first, second):
        ran = busbw("verify", plan, "--target", "mscclpp")
        assert ran.status == 0 and "legal" in ran.out
    ran = busbw("verify", schedule, "--target", "mscclpp", "--bind", "r=4")
    assert ran.status == 2 and "is schedule-json, which mscclpp-0.10 does not read" in ran.err


@pytest.mark.parametrize("verb", ["verify", "show", "convert"])
def test_a_short_file_that_asks_for_much_work_is_refused_at_once(busbw, tmp_path, verb, monkeypatch):
    """A message of 3,000 chunks where there are 4, round and round: no two of them are neighbours at both ends, each is an operation. The limit is lowered to
    1,000, so that the test is quick."""
    monkeypatch.setattr("busbw.collectives.work._LEAST", 1000)
    monkeypatch.setattr("busbw.collectives.work._A_LISTED", 4)
    schedule = json.loads(to_json(LIBRARY["bruck_all_gather"]()))
    schedule["fixed"] = {"r": 4}
    schedule["body"]["do"]["do"]["from"] = ["data", "r", 3000]
    path = tmp_path / "much.json"
    path.write_text(json.dumps(schedule))
    ran = busbw(verb, path, *([tmp_path / "out.json", "--to", "busbw-json"] if verb == "convert" else []))
    assert ran.status == 2
    assert "much.json" in ran.err and "1,000 are taken of all" in ran.err and "Bind it to fewer" in ran.err


@pytest.mark.parametrize(("ranks", "file_bytes", "operations"), [(64, 85_997, 516_160), (128, 372_429, 2_080_896)])
def test_what_design_writes_in_many_slices_is_taken(ranks, file_bytes, operations):
    """`busbw design all-reduce --cluster dgx-h100 --nodes 8 --bytes 1GiB --switches none --out FILE`, and on 16 nodes: forests of 32 slices that verify
    and convert must take; the bytes of the files, and the instructions that verify counts. 128 slices, four times as many, are its most."""
    assert most_operations(ranks, file_bytes // _LISTED_BYTES) >= 4 * operations


def test_a_loop_that_runs_for_ever_is_shown_but_not_written_out(busbw, tmp_path):
    """Its connections are those of one turn; formats without loops would need a billion rows. Ours keeps it."""
    plan = json.loads(write_busbw_json(plan_of(ring_all_reduce().bind(4), in_place=True)))
    text = json.dumps(plan).replace('"times": 3', f'"times": {2**30}').replace('"times": 2', f'"times": {2**30}')
    assert str(2**30) in text
    path = tmp_path / "long.json"
    path.write_text(text)
    assert "ring of 4, 4 links" in busbw("show", path).out
    for words in (("out.xml",), ("out.json", "--to", "mscclpp-json"), ("out.goal", "--bytes", "1MiB")):
        ran = busbw("convert", path, tmp_path / words[0], *words[1:])
        assert ran.status == 2 and "written out; 262,144 are taken of 4 ranks" in ran.err


def test_a_schedule_of_more_steps_than_are_followed_is_refused(busbw, tmp_path):
    """A ring on two ranks whose first loop is run 40,000 times."""
    schedule = json.loads(to_json(LIBRARY["ring_all_reduce"]()))
    schedule["fixed"] = {"r": 2}
    schedule["body"]["seq"][0]["count"] = 40_000
    path = tmp_path / "long.json"
    path.write_text(json.dumps(schedule))
    ran = busbw("verify", path)
    assert ran.status == 2 and "40,001 steps; 32,768 are followed" in ran.err


@pytest.mark.parametrize("verb", ["verify", "show"])
def test_a_directory_is_called_one(busbw, tmp_path, verb: str):
    ran = busbw(verb, str(tmp_path))
    assert ran.status == 2
    assert f"{tmp_path}: a directory" in ran.err
