"""libfabric (fi_info and log) and libsharp. Expected values are read off the text by eye."""

from __future__ import annotations

from busbw.readers.ofi import READER as OFI
from busbw.readers.sharp import READER as SHARP

from .host_fixtures import text_of
from .reading import columns, read_text


def test_fi_info_short():
    """Source: ofiwg/libfabric#5689."""
    found = read_text(OFI, text_of("ofi/fi_info_efa.txt"))
    assert columns(found.devices, "kind", "name") == [
        ("libfabric_provider", "efa"),
        ("libfabric_provider", "efa;ofi_rxd"),
    ]
    assert dict(found.devices[0]["attributes"]) == {
        "fabric": "EFA-fe80::1", "domain": "efa_0-rdm", "version": "2.0", "type": "FI_EP_RDM", "protocol": "FI_PROTO_EFA",
    }  # fmt: skip


def test_fi_info_long():
    """Recorded: two entries of fi_info -v, 1.17; names of sections lose their fi_."""
    found = read_text(OFI, text_of("ofi/fi_info_v_1.17.txt"))
    assert [row["name"] for row in found.devices] == ["tcp;ofi_rxm", "tcp;ofi_rxm"]
    first = dict(found.devices[0]["attributes"])
    assert (first["domain_attr.name"], first["ep_attr.protocol"]) == ("eth0", "FI_PROTO_RXM")
    assert first["tx_attr.inject_size"] == "64"
    assert first["fabric_attr.api_version"] == "1.17"
    assert found.losses == []


def test_version_of_the_library():
    found = read_text(OFI, text_of("ofi/fi_info_version.txt"))
    assert found.events_named("libfabric.library") == [{"version": "1.17.0"}]


def test_log_with_and_without_a_time():
    """libfabric puts the time behind the process since 1.14, then a prefix that is mostly empty."""
    found = read_text(OFI, text_of("ofi/log.txt"))
    assert [e["provider"] for e in found.events_named("libfabric.provider_empty")] == ["ofi_rxm", "shm"]
    assert found.events_named("libfabric.fabric_opened") == [{"fabric": "efa"}]
    assert [(e["process"], e.get("seconds"), e["message"]) for e in found.events_named("libfabric.warning")] == [
        ("23671", "1753871170", "Unable to allocate memory for the endpoint"),
        ("47889", None, "Unable to register MR of 4096 bytes: Cannot allocate memory"),
    ]


def test_jobs_trees_and_groups_of_sharp():
    """Wordings of 2.5 (tree_info) and 3.x (sharp_job_id)."""
    found = read_text(SHARP, text_of("sharp/log.txt"))
    assert [e["job"] for e in found.events_named("sharp.job")] == ["2838387367436317", "17800447739156601301"]
    assert [(e["kind"], e["tree_id"]) for e in found.events_named("sharp.tree")] == [("LLT", "0x0"), ("LLT", "18")]
    assert [(e["job"], e["size"]) for e in found.events_named("sharp.group")] == [("41", "1")]
    assert found.events_named("sharp.failed") == [{"function": "get_job_data_len", "error": "Job error(-35)"}]
