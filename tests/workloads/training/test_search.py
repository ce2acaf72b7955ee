"""Searches: legal means what `check` says, the best comes first, and losers have a reason."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.workloads.training.frameworks import find_framework
from busbw.workloads.training.job import Job
from busbw.workloads.training.layout import SHARDING, Batch, is_legal
from busbw.workloads.training.models import find_model
from busbw.workloads.training.predict import predict_step
from busbw.workloads.training.search import ALIKE, Space, candidates, levels, search

CLUSTER = find_cluster("dgx-h100", 2)[0]


def job(name="llama3-8b", batch=32, **changes):
    return Job(find_model(name), CLUSTER, batch, 4096, **changes)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_candidates_are_the_layouts_that_check_lets_pass(name):
    at = job(name)
    columns = candidates(at)
    assert len(columns)
    for place in range(0, len(columns), max(1, len(columns) // 60)):
        layout = columns.layout(place)
        assert is_legal(at.model, layout, Batch(32, int(columns.micro_batch[place]), 4096), 16), str(layout)


def test_the_best_fit_in_memory_and_are_ordered():
    found = search(job())
    assert 0 < found.fit <= found.legal
    assert (np.diff(found.steps.total_s) >= 0).all()
    best = found.best(5)
    assert len({str(layout) for layout, _, _, _ in best}) >= 3
    layout, micro, recompute, total = best[0]
    step = predict_step(job(), layout, micro, recompute)
    assert step.verdict == "fits"
    assert step.total_s == pytest.approx(total)
    assert sum(found.losses.values()) >= found.legal - found.fit


def test_what_is_fixed_stays():
    found = search(job(), Space(tp=(8,), micro_batch=(2,)))
    assert {layout.tp for layout, _, _, _ in found.best(9)} == {8}


def test_steps_that_differ_by_less_than_half_a_per_cent_count_once():
    times = np.array([1.0, 1.0 + ALIKE / 2, 1.0 + 1.1 * ALIKE, 2.0])
    assert levels(times) == [0, 2, 3]
    assert levels(np.array([])) == []


def test_no_legal_layout_and_none_that_fits_say_what_to_change():
    with pytest.raises(InputError, match="no legal layout"):
        search(job(batch=1), Space(tp=(1,), pp=(1,), cp=(1,)))
    with pytest.raises(InputError, match=r"need at least \d+ GiB"):
        search(job("llama3.1-405b"))


def test_a_framework_is_offered_only_what_it_can_run():
    """Megatron shards weights only without a pipeline; llm-foundry has data parallelism alone."""
    job = Job(find_model("llama3-8b"), find_cluster("dgx-h100", 2)[0], 64, 4096)
    whole = candidates(job)
    megatron, foundry = (candidates(job, Space(framework=find_framework(name))) for name in ("megatron", "llm-foundry"))
    sharded = megatron.sharding >= SHARDING.index("fsdp")
    assert sharded.any() and (megatron.pp[sharded] == 1).all() and (megatron.pp > 1).any()
    assert (foundry.tp * foundry.pp * foundry.cp == 1).all() and len(foundry)
    assert len(whole) > len(megatron) > len(foundry)
    with pytest.raises(InputError, match=r"framework 'megatrn' is not known.*megatron"):
        find_framework("megatrn")


def test_hybrid_sharding_keeps_the_weights_of_a_copy_in_an_nvlink_domain():
    """16 GPUs in two nodes of 8: shards of 8 / tp, two copies; none on one node, where it would be FSDP."""

    def shards(nodes):
        job = Job(find_model("llama3-8b"), find_cluster("dgx-h100", nodes)[0], 64, 4096)
        found = candidates(job, Space(sharding=("hsdp",), cp=(1,), pp=(1,)))
        return {(int(tp), int(shard)) for tp, shard in zip(found.tp, found.shard, strict=True)}

    assert shards(2) == {(1, 8), (2, 4), (4, 2)}
    assert shards(1) == set()


def test_workers_of_an_engine_find_what_one_process_finds():
    job = Job(find_model("llama3-8b"), find_cluster("dgx-h100", 1)[0], 16, 4096)
    with ThreadPoolExecutor(2) as pool:
        there = search(job, executor=pool)
    here = search(job)
    assert there.best(5) == here.best(5) and there.losses == here.losses


def test_embedding_and_output_may_count_as_layers_where_the_framework_deals_them():
    """94 layers do not divide into pp4.vpp12 = 48 chunks, 94 and the two ends do; 2 x 47 divides the layers alone, for anybody."""
    at = job("qwen3-235b-a22b", batch=64)

    def interleaved(framework):
        space = Space(tp=(1,), cp=(1,), pp=(2, 4), micro_batch=(1,), framework=find_framework(framework))
        columns = candidates(at, space)
        return {(int(pp), int(vpp)) for pp, vpp in zip(columns.pp, columns.vpp, strict=True)}

    assert (4, 12) in interleaved("megatron")
    assert (4, 12) not in interleaved("nemo-24")
    assert all((2, 47) in interleaved(name) for name in ("megatron", "nemo-24"))
