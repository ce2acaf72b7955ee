"""Variables that change the choice: what they mean, what NCCL makes of odd values, and which mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbw.errors import InputError
from busbw.hardware import find_node, node_topology
from busbw.hardware.formats import read_nccl_topology
from busbw.nccl import Algorithm, Call, Function, Protocol, Settings, communicator, load_variables, read_settings
from busbw.nccl.settings import _READERS

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(scope="module")
def dgx_h100():
    return node_topology(find_node("dgx-h100"))[0]


def chosen(topology, nodes, size, function=Function.AllReduce, **variables):
    model = communicator(topology, nodes, read_settings(variables))
    return model.choices(function, [size])[0]


def test_nothing_given_is_nccl_alone():
    assert read_settings({}) == Settings()
    assert read_settings({"NCCL_ALGO": ""}).algorithms == ()


def test_a_list_allows_and_a_caret_takes_away():
    """NVIDIA/nccl, src/graph/tuning.cc: `NCCL_PROTO="^LL128;allreduce:LL128"` leaves LL128 to AllReduce alone."""
    settings = read_settings({"NCCL_PROTO": "^LL128;allreduce:LL128"})
    assert settings.allowed_protocols(Function.AllReduce) == {Protocol.LL128}
    assert settings.allowed_protocols(Function.Broadcast) == {Protocol.LL, Protocol.Simple}


def test_case_does_not_matter_in_lists():
    assert read_settings({"NCCL_ALGO": "rInG,nvlstree"}).allowed_algorithms(Function.Reduce) == {
        Algorithm.Ring,
        Algorithm.NVLSTree,
    }


def test_functions_that_a_list_does_not_speak_of_keep_everything(dgx_h100):
    settings = read_settings({"NCCL_ALGO": "allreduce:tree"})
    assert settings.allowed_algorithms(Function.AllGather) is None
    assert chosen(dgx_h100, 2, 2**20, NCCL_ALGO="allreduce:tree").algorithm is Algorithm.Tree
    assert chosen(dgx_h100, 2, 2**20, Function.AllGather, NCCL_ALGO="allreduce:tree").algorithm is Algorithm.Ring


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NCCL_ALGO": "Rng"}, "nearest: Ring"),
        ({"NCCL_ALGO": "NVLS_TREE"}, "nearest: NVLSTree"),
        ({"NCCL_PROTO": "LL182"}, "nearest: LL128"),
        ({"NCCL_PROTO": "allredcue:LL"}, "nearest: AllReduce"),
        ({"NCCL_ALGO": "allreduce:ring;tree"}, "needs a function before it"),
        ({"NCCL_ALG": "Ring"}, "Did you mean NCCL_ALGO?"),
        ({"nccl_proto": "LL"}, "Did you mean NCCL_PROTO?"),
        ({"NCCL_P2P_LEVEL": "NVLINK"}, "nearest: NVL"),
        ({"NCCL_NET_GDR_LEVEL": "sys"}, "nearest: SYS"),
        ({"NCCL_CROSS_NIC": "3"}, "nearest: 2"),
        ({"NCCL_NVLS_ENABLE": "yes"}, "not a whole number"),
        ({"NCCL_MIN_NCHANNELS": "16,"}, "not a whole number"),
        ({"NCCL_NETDEVS_POLICY": "MAX"}, "MAX:n"),
        ({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "4"}, "above NCCL_MAX_CTAS=4"),
        ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}, "Unset one of the two"),
    ],
)
def test_a_mistake_is_one_clear_error_with_what_was_meant(variables, said):
    with pytest.raises(InputError) as error:
        read_settings(variables)
    assert said in str(error.value)
    assert next(iter(variables)) in str(error.value)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NCCL_NTHREADS": "100"}, "NCCL takes 512"),
        ({"NCCL_NTHREADS": "32"}, "NCCL takes 64"),
        ({"NCCL_MAX_NCHANNELS": "128"}, "NCCL takes 64"),
        ({"NCCL_MAX_NCHANNELS": "0"}, "NCCL takes 1"),
        ({"NCCL_P2P_LEVEL": "5"}, "it means SYS"),
        ({"NCCL_BUFFSIZE": "8388608"}, "changes chunk sizes"),
        ({"NCCL_COLLNET_ENABLE": "1"}, "not modelled yet"),
        ({"NCCL_TREE_THRESHOLD": "0"}, "no effect any more"),
        ({"NCCL_IB_TIMEOUT": "22"}, "does not change algorithm"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "takes precedence"),
    ],
)
def test_what_nccl_replaces_or_what_changes_nothing_is_said(variables, said):
    assert any(said in line for line in read_settings(variables).notes)


def test_every_variable_that_is_read_is_no_unknown_one():
    """The model's variables beside the table of variables: names of both are spelled alike."""
    assert all(name.startswith("NCCL_") for name in _READERS)
    common = _READERS.keys() & load_variables().keys()
    assert {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"} <= common


def test_channels_follow_their_limits(dgx_h100):
    """Two nodes of DGX H100 have 16 channels, recorded. The lower limit counts after the upper one."""
    channels = lambda **variables: communicator(dgx_h100, 2, read_settings(variables)).inputs.channels  # noqa: E731
    assert channels() == 16
    assert channels(NCCL_MAX_NCHANNELS="4") == 4
    assert channels(NCCL_MIN_NCHANNELS="32") == 32
    assert channels(NCCL_MAX_NCHANNELS="4", NCCL_MIN_NCHANNELS="8") == 8
    assert channels(NCCL_MAX_CTAS="2") == 2


def test_nvls_off_leaves_trees_and_rings(dgx_h100):
    assert chosen(dgx_h100, 1, 2**30).algorithm is Algorithm.NVLS
    assert chosen(dgx_h100, 1, 2**30, NCCL_NVLS_ENABLE="0").algorithm is Algorithm.Ring
    model = communicator(dgx_h100, 1, read_settings({"NCCL_NVLS_ENABLE": "0"}))
    assert model.why_off(Function.AllReduce)[Algorithm.NVLS, Protocol.Simple] == ("NCCL_NVLS_ENABLE=0",)


def test_a_forced_protocol_is_not_held_back_by_distance():
    """LL128 is off between GPUs without NVLink, unless NCCL_PROTO asks for it: which corrupts data where stores are not atomic."""
    topology, _ = read_nccl_topology((GOLDENS / "pcie_l40s.xml").read_bytes(), "pcie_l40s.xml")
    causes = communicator(topology, 1).why_off(Function.AllReduce)[Algorithm.Ring, Protocol.LL128]
    assert causes == ("GPU to GPU is SYS, no NVLink",)
    assert chosen(topology, 1, 2**20, NCCL_PROTO="LL128").protocol is Protocol.LL128
    assert chosen(topology, 1, 2**20, Function.AllGather, NCCL_PROTO="allreduce:LL128").protocol is not Protocol.LL128


def test_nothing_left_names_what_switched_each_cell_off(dgx_h100):
    with pytest.raises(InputError) as error:
        chosen(dgx_h100, 1, 2**20, NCCL_ALGO="NVLS", NCCL_PROTO="LL")
    assert "NVLS Simple: NCCL_PROTO=LL" in str(error.value)
    assert "NVLSTree Simple: NCCL_ALGO=NVLS; NCCL_PROTO=LL; one node" in str(error.value)


def test_gpus_without_peer_access_lose_nvlink(dgx_h100):
    ring = communicator(dgx_h100, 1, read_settings({"NCCL_P2P_DISABLE": "1"})).inputs.ring
    assert ring.type_intra.name == "SYS"
    assert ring.channels * ring.intra_gb_per_s < 50  # PCIe 5 x16 is 48 GB/s to NCCL


def test_gpudirect_off_sends_everything_through_the_cpu(dgx_h100):
    ring = communicator(dgx_h100, 2, read_settings({"NCCL_NET_GDR_LEVEL": "LOC"})).inputs.ring
    assert ring.type_inter.name == "PHB"


def test_one_rail_a_channel_where_nics_may_not_be_crossed(dgx_h100):
    assert communicator(dgx_h100, 2).inputs.ring.cross_nic == 2
    ring = communicator(dgx_h100, 2, read_settings({"NCCL_CROSS_NIC": "0"})).inputs.ring
    assert ring.cross_nic == 0
    assert all(entered == left for entered, left in ring.nets)


def test_what_the_switch_cannot_reduce_is_not_given_to_it(dgx_h100):
    model = communicator(dgx_h100, 1)
    assert model.choice("all_reduce", 2**30).algorithm is Algorithm.NVLS
    assert model.choice("all_reduce", 2**30, Call("float32", "max")).algorithm is Algorithm.Ring
    assert model.choice("all_reduce", 2**30, Call("bfloat16", "max")).algorithm is Algorithm.NVLS
    with pytest.raises(InputError, match="nearest: bfloat16"):
        Call("bf16")


def test_impossible_counts_are_refused(dgx_h100):
    with pytest.raises(InputError, match="at least one node"):
        communicator(dgx_h100, 0)
    with pytest.raises(InputError, match="more ranks than NCCL can number"):
        communicator(dgx_h100, 1 << 30)
    with pytest.raises(InputError, match="sizes are 0"):
        communicator(dgx_h100, 1).choices(Function.AllReduce, [-1])
    with pytest.raises(InputError, match="sends and receives"):
        communicator(dgx_h100, 1).choice("all_to_all", 8)


def test_no_sizes_are_no_choices(dgx_h100):
    assert len(communicator(dgx_h100, 2).choices(Function.AllReduce, [])) == 0


def test_a_version_without_recordings_says_that_it_is_unverified(dgx_h100):
    newer = communicator(dgx_h100, 2, version="2.32.3")
    assert not newer.constants.verified
    with pytest.raises(InputError, match=r"nearest: 2\.30\.7"):
        communicator(dgx_h100, 2, version="2.30.8")
