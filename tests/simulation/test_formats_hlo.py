"""HLO text as a graph: what a program sends, how often, after what. The recorded module: see tests/readers/test_hlo.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from busbw.errors import InputError, Losses
from busbw.hardware import Cluster, find_node
from busbw.simulation import simulate
from busbw.simulation.formats import read_graph
from busbw.simulation.graph import SEND, TRANSFER

STEP = Path(__file__).parents[1] / "readers" / "fixtures" / "hlo" / "step.txt"
PAIRS = "channel_id=1, replica_groups=[1,2]<=[2], use_global_device_ids=true"


def graph(tmp_path: Path, text: str, losses: Losses | None = None, **options):
    file = tmp_path / "m.txt"
    file.write_text(text)
    return read_graph(file, losses, **options)


def module(*lines: str, devices: int = 2, before: str = "") -> str:
    return (
        f"HloModule m, num_partitions={devices}\n{before}ENTRY %main {{\n %p = f32[1024] parameter(0)\n"
        + "".join(f" {line}\n" for line in lines)
        + "}\n"
    )


def time_s(made) -> float:
    node = find_node("dgx-h100")
    assert node is not None
    return float(simulate(made, Cluster("test", node, 1)).time_s)


def test_a_loop_sends_as_often_as_it_runs():
    """Three layers: all-gather and reduce-scatter of 4 KiB between four, 3/4 of it each rank; a permutation of 1 KiB. Then 1 KiB all-reduced between two, 2 x 512 B a rank; an
    all-to-all of 1 KiB between four, 3/4 of it; and 4 B all-reduced between eight, whose pieces have a byte at the least: 14 a rank."""
    made = read_graph(STEP)
    moved = int(made.size_bytes[(made.kind == TRANSFER) | (made.kind == SEND)].sum())
    assert moved == 8 * (3 * (3072 + 3072 + 1024) + 1024 + 768 + 14)


def test_what_needs_a_result_comes_after_it_and_what_does_not_goes_beside_it(tmp_path):
    one, other = (f"%{name} = f32[1024] all-reduce(%{{}}), {PAIRS}" for name in "ab")
    chain, beside = module(one.format("p"), other.format("a")), module(one.format("p"), other.format("p"))
    alone = module(one.format("p"))
    alone_s, chain_s, beside_s = (time_s(graph(tmp_path, text)) for text in (alone, chain, beside))
    assert chain_s == pytest.approx(2 * alone_s, rel=1e-6)
    assert beside_s < 1.5 * alone_s


def test_results_go_through_what_lies_between_and_through_called_computations(tmp_path):
    """A fusion, a tuple and an asynchronous pair between two collectives keep their order."""
    inside = f"%inner {{\n %q = f32[1024] parameter(0)\n ROOT %r = f32[1024] all-reduce(%q), {PAIRS}\n}}\n"
    lines = (
        f"%s = f32[1024] all-reduce-start(%p), {PAIRS}", "%d = f32[1024] all-reduce-done(%s)", "%t = (f32[1024], f32[1024]) tuple(%d, %p)", "%g = f32[1024] get-tuple-element(%t), index=0",
        "ROOT %c = f32[1024] call(%g), to_apply=%inner",
    )  # fmt: skip
    made = graph(tmp_path, module(*lines, before=inside))
    alone = graph(tmp_path, module(f"%a = f32[1024] all-reduce(%p), {PAIRS}"))
    assert time_s(made) == pytest.approx(2 * time_s(alone), rel=1e-6)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
def test_any_number_of_devices(tmp_path, devices: int):
    made = graph(
        tmp_path,
        module(
            f"%a = f32[7] all-reduce(%p), replica_groups={{}}, channel_id=1{', use_global_device_ids=true'}",
            devices=devices,
        ),
    )
    assert made.ranks == devices
    assert (time_s(made) > 0) == (devices > 1)


def test_devices_without_a_partner_in_a_permutation_go_on(tmp_path):
    lines = (
        "%a = f32[1024] collective-permute(%p), channel_id=1, source_target_pairs={{0,1}}",
        f"%b = f32[1024] all-reduce(%a), {PAIRS}",
    )
    assert time_s(graph(tmp_path, module(*lines))) > 0


def test_times_that_the_text_does_not_say_are_a_loss(tmp_path):
    losses = Losses("m.txt")
    body = f"%body {{\n %q = f32[1024] parameter(0)\n ROOT %r = f32[1024] all-reduce(%q), {PAIRS}\n}}\n"
    graph(tmp_path, module("%w = f32[1024] while(%p), condition=%none, body=%body", before=body), losses)
    assert {loss.kind for loss in losses} == {"no-compute-times", "unknown-trip-count"}


@pytest.mark.parametrize(("text", "options", "said"), [
    (module("%a = f32[8] add(%p, %p)"), {}, "no collective in this module"), ("HloModule m\n%c {\n", {}, "no ENTRY computation"),
    (module(f"%a = f32[8] all-reduce(%p), {PAIRS}"), {"ranks": 4}, "compiled for 2 devices, not 4"),
    (module("%a = f32[8] call(%p), to_apply=%main", f"%b = f32[8] all-reduce(%p), {PAIRS}"), {}, "in a circle"),
])  # fmt: skip
def test_a_module_that_is_no_graph_is_refused(tmp_path, text: str, options, said: str):
    with pytest.raises(InputError, match=said):
        graph(tmp_path, text, **options)


def test_every_byte_sent_has_a_rank_of_the_module():
    made = read_graph(STEP)
    assert made.ranks == 8
    assert set(np.unique(made.rank)) == set(range(8))


def test_a_value_that_all_layers_add_to_needs_each_collective_once(tmp_path):
    """x = x + all-reduce(x), as every transformer does: 400 layers cost 400 times the edges of one, not 400 squared."""

    def layers(number: int):
        lines = [
            line
            for k in range(number)
            for line in (
                f"%a{k} = f32[1024] all-reduce(%x{k}), {PAIRS}",
                f"%x{k + 1} = f32[1024] add(%x{k}, %a{k})",
            )
        ]
        return graph(tmp_path, module("%x0 = f32[1024] copy(%p)", *lines))

    few, many = layers(4), layers(400)
    assert edges(many) < 110 * edges(few)


def edges(made) -> int:
    return len(made.after)


def test_loops_of_many_collectives_beside_each_other_grow_with_their_number(tmp_path):
    """A hundred all-reduces a trip that need nothing of each other; the next trip needs all of them: a hundred edges each way and not their product."""
    many = 100
    inside = "".join(f" %a{k} = f32[1] all-reduce(%q), {PAIRS}\n" for k in range(many))
    body = f"%body {{\n %q = f32[1024] parameter(0)\n{inside} ROOT %t = (f32[1]) tuple({', '.join(f'%a{k}' for k in range(many))})\n}}\n"
    trips = 'backend_config={"known_trip_count":{"n":"N"}}'
    loop = f"%w = f32[1024] while(%p), condition=%c, body=%body, {trips}"
    one, ten = (graph(tmp_path, module(loop.replace('"N"', f'"{n}"'), before=body)) for n in (1, 10))
    assert edges(ten) < 15 * edges(one)
    assert time_s(ten) > 9 * time_s(one)


@pytest.mark.parametrize("call", ["%f0", "%deep"])
def test_computations_in_a_circle_are_told_at_once(tmp_path, call):
    """Two calls of itself each: looked at as often as they stand, 2^64 of them."""
    circle = "%deep {\n %q = f32[8] parameter(0)\n %a = f32[8] call(%q), to_apply=%deep\n ROOT %b = f32[8] call(%q), to_apply=%deep\n}\n"
    tower = "".join(f"%f{k} {{\n ROOT %a = f32[8] call(), to_apply=%f{k + 1}\n}}\n" for k in range(200))
    with pytest.raises(InputError, match="deep, or in a circle"):
        graph(tmp_path, module(f"%x = f32[8] call(%p), to_apply={call}", before=circle + tower))


@pytest.mark.parametrize("before", ["// made by hand\n", "\ufeff", "\ufeff\n\n// x\n\n"])
def test_a_module_may_begin_with_remarks_or_a_byte_order_mark(tmp_path, before):
    text = module(f"%a = f32[1024] all-reduce(%p), {PAIRS}")
    assert time_s(graph(tmp_path, before + text)) == time_s(graph(tmp_path, text))


def test_a_collective_of_a_type_that_is_not_known_is_told(tmp_path):
    losses = Losses("m")
    graph(tmp_path, module(f"%a = q7[1024] all-reduce(%p), {PAIRS}"), losses)
    assert "collective-not-simulated" in {loss.kind for loss in losses}
