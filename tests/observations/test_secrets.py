"""What never enters a store: values that nobody needs to explain a run, and above all tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.observations import Artefact, is_allowed_variable, redact, rows_of
from busbw.observations.secrets import redact_batch, redact_text
from busbw.observations.store import Store, _redacted

SECRET = "Zq7wVx-made-up-9pL2"
"""Stands for the value of a secret wherever these tests hide one."""


# --- Which variables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "UCX_TLS", "FI_PROVIDER", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "LD_LIBRARY_PATH", "RANK"]
)
def test_variables_that_explain_a_run_are_kept(name):
    assert is_allowed_variable(name)
    text = f"{name}=value".encode()
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "HOME",
        "USER",
        "PGPASSWORD",
        "NCCL_AUTH_TOKEN",
        "SSH_AUTH_SOCK",
    ],
)
def test_all_other_variables_are_not(name):
    assert not is_allowed_variable(name)


# --- Where secrets stand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        # A configuration as nixlbench prints it.
        "OBJ S3 secret key (--obj_secret_key=key)                     : {secret}",
        "OBJ S3 session token (--obj_session_token=token)             : {secret}",
        "Azure Blob (--azure_blob_connection_string=connection-string): AccountName=a;AccountKey={secret}==;EndpointSuffix=x",
        "DefaultEndpointsProtocol=https;AccountKey={secret};EndpointSuffix=core.windows.net",
        # An environment, as tools and people print one.
        "MY_CREDS={secret}",
        "export MY_CREDS={secret}",
        'export MY_CREDS="{secret} and more"',
        "MY_CREDS='{secret}'",
        "mpirun -x NCCL_DEBUG=INFO -x MY_CREDS={secret} ./all_reduce_perf",
        "srun --export=ALL,NCCL_DEBUG=INFO,MY_CREDS={secret} ./all_reduce_perf",
        "NCCL_DEBUG=INFO:MY_CREDS={secret}",
        "NCCL_DEBUG=INFO;MY_CREDS={secret}",
        "NCCL_DEBUG=INFO\0MY_CREDS={secret}\0",
        'NCCL_DEBUG="INFO" MY_CREDS="{secret}"',
        "NCCL_DEBUG=INFO MY_CREDS={secret}",
        "[rank0]: MY_CREDS={secret}",
        "env.MY_CREDS={secret}",
        "{{'NCCL_DEBUG': 'INFO', 'MY_CREDS': '{secret}'}}",
        "environ({{'MY_CREDS': '{secret}'}})",
        "MY_CREDS=two words {secret}",
        "export MY_CREDS=two words {secret}",
        '  - name: MY_CREDS\n    value: "{secret}"',
        # JSON, and JSON inside JSON.
        '"env": ["NCCL_DEBUG=INFO", "MY_CREDS={secret}"]',
        '{{"MY_CREDS": "{secret}"}}',
        '{{"MY_CREDS" : "{secret}"}}',
        '{{"env": "NCCL_DEBUG=INFO\\nMY_CREDS={secret}\\nRANK=0"}}',
        '{{"env": "NCCL_DEBUG=INFO\\u0000MY_CREDS={secret}"}}',
        '{{"text": "{{\\"MY_CREDS\\": \\"{secret}\\"}}"}}',
        '{{"text": "[\\"MY_CREDS={secret}\\"]"}}',
        # Options and settings whose name says it.
        "--hf-token {secret}",
        "--hf-token={secret}",
        "--password {secret}",
        "hf_token={secret}",
        '"hf_token": "{secret}"',
        "'hf_token': '{secret}'",
        "hf_token: {secret}",
        "Authorization: Bearer {secret}",
        "https://user:{secret}@example.org/x",
        # Options whose program says it.
        "curl -u admin:{secret} https://example.org",
        "curl -uadmin:{secret} https://example.org",
        "curl -u 'admin:{secret} and more' https://example.org",
        "curl --user admin:{secret} https://example.org",
        'curl --user="admin:{secret}" https://example.org',
        "curl --proxy-user admin:{secret} https://example.org",
        '["curl", "-u", "admin:{secret}"]',
        "mysql -h db -u root -p{secret} jobs",
        "mysql -p {secret} jobs",
        "mysqldump -p'{secret}' jobs",
        '["mysql", "-p{secret}"]',
        "sshpass -p {secret} ssh n1",
        # As NCCL reports variables.
        "node1:4:9 [0] NCCL INFO NCCL_AUTH_TOKEN set by environment to {secret}.",
        "NCCL_PASSWORD set to {secret}",
    ],
)
def test_a_value_that_must_not_be_kept_is_blanked_wherever_it_stands(text):
    data = text.format(secret=SECRET).encode()
    assert SECRET.encode() not in redact(data)
    assert len(redact(data)) == len(data)


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "glpat-abcdefghijklmnopqrst",
        "sk-abcdefghijklmnopqrstuvwx",
        "xoxb-123456789012-abcdefghijkl",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    ],
)
def test_tokens_of_known_shapes_are_blanked_without_a_name(token):
    assert token.encode() not in redact(f"using {token} for the download".encode())


def test_a_private_key_is_blanked_line_by_line():
    key = b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabcdefgh\n-----END RSA PRIVATE KEY-----\n"
    blanked = redact(key)
    assert b"MIIE" not in blanked
    assert b"abcdefgh" not in blanked
    assert [len(line) for line in blanked.splitlines()] == [len(line) for line in key.splitlines()]


@pytest.mark.parametrize(
    "text",
    [
        "node1:4:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "node1:4:9 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1",
        "node1:4:9 [0] NCCL INFO comm 0x55 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0",
        "node1:4:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>",
        "NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME==eth0 UCX_NET_DEVICES=mlx5_0:1",
        "#  Rank  0 Group  0 Pid   4242 on      node1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3",
        "     8388608       2097152     float     sum      -1    85.31   98.33  172.08      0",
        "[0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)",
        "ERROR: process exited with error_file: <N/A>",
        "WARNING: Open MPI: failed",
        "docker run -u 1000:1000 -p 8080:80 image python -u train.py",
        "mpirun -np 8 --user root ./all_reduce_perf",
    ],
)
def test_what_explains_a_run_stays_readable(text):
    assert redact(text.encode()) == text.encode()


# --- Laws -----------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from([
    b"HF_TOKEN=", b"NCCL_DEBUG=", b"x=", b"=", b'"', b"'", b"\\", b"\\n", b": ", b" ", b"\n", b"-", b"--token",
    b"hf_", b"sk-",
    b"a" * 20, b"Bearer ", b"://", b"@", b":", b"-----BEGIN PRIVATE KEY-----", b"eyJ", b".", b"AKIA",
    b"A" * 16, b"*", b"\x00", b"\xff", b"ABC", b",",
])  # fmt: skip
TEXT = st.one_of(st.binary(), st.lists(PIECES, max_size=25).map(b"".join))


@given(data=TEXT)
def test_redaction_keeps_every_byte_at_its_offset_and_every_line_break(data):
    blanked = redact(data)
    assert len(blanked) == len(data)
    assert all(new in (old, ord("*")) for new, old in zip(blanked, data, strict=True))
    assert [i for i, byte in enumerate(blanked) if byte in b"\r\n"] == [
        i for i, byte in enumerate(data) if byte in b"\r\n"
    ]


@given(data=TEXT)
def test_redacting_twice_is_redacting_once(data):
    assert redact(redact(data)) == redact(data)


@given(
    lines=st.lists(st.lists(PIECES.filter(lambda p: b"\n" not in p), max_size=6).map(b"".join), max_size=20),
    size=st.integers(1, 400),
)
def test_a_file_redacted_in_pieces_is_the_file_redacted_whole(lines, size):
    """Wherever the pieces end, within a value too; lines here are shorter than the overlap of 2,000 bytes."""
    text = b"\n".join(lines).replace(b"-----BEGIN PRIVATE KEY-----", b"")
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert b"".join(_redacted(pieces, overlap_bytes=2000)) == redact(text)


@pytest.mark.parametrize("filling", [b"x y z ", b"NCCL INFO something\n"])
@pytest.mark.parametrize(
    "secret", [b'"MY_CREDS=' + b"s3" * 400 + b'"', b"-----BEGIN PRIVATE KEY-----\n" + b"s3s3s3\n" * 100]
)
def test_a_secret_across_a_cut_is_blanked_also_in_a_file_of_one_line(filling, secret):
    """Every position of the secret relative to the cuts, in steps of 97 bytes; overlap larger than the secret."""
    for before in range(0, 4000, 97):
        text = (filling * 1000)[:before] + b" " + secret + b" " + filling * 500
        blanked = b"".join(_redacted([text[i : i + 1024] for i in range(0, len(text), 1024)], overlap_bytes=1000))
        assert len(blanked) == len(text)
        assert b"s3" not in blanked


def test_text_is_redacted_like_bytes():
    assert redact_text("HF_TOKEN=abc NCCL_DEBUG=INFO") == "HF_TOKEN=*** NCCL_DEBUG=INFO"
    assert redact_text("plain text") == "plain text"


# --- In a store -----------------------------------------------------------------------------------------------------


def stored_bytes(folder: Path) -> bytes:
    """All that a store holds: every file, and what its segments unpack to."""
    whole = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    unpacked = [str(pq.read_table(path).to_pylist()).encode() for path in folder.rglob("*.parquet")]
    return whole + b"".join(unpacked)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_benchmark_s_json_with_its_environment_leaves_no_token_in_the_store(tmp_path, indent):
    """nccl-tests -J writes the whole environment of the process, as a list of NAME=VALUE."""
    tokens = {
        "HF_TOKEN": "hf_QqQqQqQqQqQqQqQqQqQq",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
        "DATABASE_URL": "postgres://admin:hunter2hunter2@db/prod",
        "MY_QUOTED": 'a "quoted\\" secretquoted',
        "UNICODE_PASS": "pässwörtchen",
        "PS1": "secretprompt $ ",
    }
    kept = {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_0", "SLURM_JOB_ID": "4242"}
    report = {
        "version": "2.17.2",
        "args": ["./build/all_reduce_perf", "-b", "8", "--token", "argumenttoken"],
        "env": [f"{name}={value}" for name, value in (tokens | kept).items()],
        "results": [{"size": 1024 * i, "time": 11.5, "busbw": 0.17} for i in range(1000)],
    }
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report, indent=indent), encoding="utf-8")
    one = Artefact.of(file, "report.json")
    store = Store(tmp_path / "store")
    with store.begin([one]) as run:
        variables = dict(entry.split("=", 1) for entry in report["env"])
        settings = [
            {"artefact": one.sha256, "name": n, "value": v} for n, v in variables.items() if is_allowed_variable(n)
        ]
        run.add(one, rows_of("settings", settings))
        run.keep(one, ["nccl_tests_json"])
        run.commit()
    everything = stored_bytes(tmp_path / "store")
    secrets = [
        "hf_Qq",
        "wJalrX",
        "AKIAIO",
        "0123456789abcdef",
        "hunter2",
        "secretquoted",
        "rtchen",
        "secretprompt",
        "argumenttoken",
    ]
    assert [secret for secret in secrets if secret.encode() in everything] == []
    copy = store.kept(one.sha256)
    assert copy.stat().st_size == one.size_bytes
    assert copy.stat().st_mode & 0o777 == 0o600
    assert json.loads(copy.read_bytes())["results"] == report["results"]
    assert store.query("SELECT name, value FROM settings").to_pylist() == [
        {"name": n, "value": v} for n, v in kept.items()
    ]


def test_what_a_loss_tells_is_redacted_too(tmp_path):
    (tmp_path / "a").write_text("x")
    one, store = Artefact.of(tmp_path / "a", "a"), Store(tmp_path / "store")
    from busbw.errors import Loss

    with store.begin([one]) as run:
        run.lose(one, Loss("odd-line", "a", 1, f"Not understood: MY_CREDS={SECRET}"))
        run.commit()
    assert SECRET.encode() not in stored_bytes(tmp_path / "store")


def test_a_compressed_file_is_not_kept_since_nobody_sees_into_it(tmp_path):
    import gzip

    (tmp_path / "log.gz").write_bytes(gzip.compress(b"HF_TOKEN=abc"))
    one, store = Artefact.of(tmp_path / "log.gz", "log.gz"), Store(tmp_path / "store")
    with store.begin([one]) as run:
        run.keep(one, [])
        run.commit()
    assert store.kept(one.sha256) is None
    assert store.query("SELECT kind FROM losses").to_pylist() == [{"kind": "compressed-not-kept"}]


def test_what_is_being_kept_is_redacted_before_it_touches_the_disk(tmp_path):
    """A writer killed halfway leaves temporary files; they hold no token either."""
    (tmp_path / "a").write_text(f"MY_CREDS={SECRET}\n" * 10)
    one, store = Artefact.of(tmp_path / "a", "a"), Store(tmp_path / "store")
    with store.begin([one]) as run:
        run.keep(one, [])
        assert b"MY_CREDS=" in stored_bytes(tmp_path / "store")
        assert SECRET.encode() not in stored_bytes(tmp_path / "store")


def test_words_of_the_field_before_an_equals_sign_are_no_variables():
    """The CUDA sample prints `P2P=Enabled`: a line of output, not an environment."""
    line = b"Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
    assert redact(line) == line


def test_no_column_of_a_row_holds_a_secret(tmp_path):
    """Not a text, a name, a value, a field; whatever the table."""
    (tmp_path / "a").write_text("x")
    one, store = Artefact.of(tmp_path / "a", "a"), Store(tmp_path / "store")
    telling = f"CUDA out of memory. token: hf_abcdefghijklmnopqrst password={SECRET}"
    rows = {
        "settings": {"name": "NCCL_NET_PLUGIN", "value": f"http://user:{SECRET}@host/x"},
        "events": {
            "event": "cuda.error",
            "text": telling,
            "fields": {"message": f"DB_DSN=postgres://bob:{SECRET}@db/x"},
        },
        "devices": {"name": telling, "attributes": {"password": SECRET, "bus": "1b:00"}},
        "pairs": {"src": f"https://a:{SECRET}@n1", "dst": "n2", "value": 1.0},
        "counters": {"host": "n1", "name": f"--token {SECRET}", "value": 1.0},
    }
    with store.begin([one]) as run:
        for table, row in rows.items():
            run.add(one, rows_of(table, [{"artefact": one.sha256, "line": 1, **row}, {"artefact": one.sha256}]))
        run.add(one, rows_of("settings", [{"artefact": one.sha256, "name": "NCCL_AUTH_TOKEN", "value": SECRET}]))
        run.commit()
    everything = stored_bytes(tmp_path / "store")
    assert SECRET.encode() not in everything
    assert b"hf_abc" not in everything
    assert store.query("SELECT attributes['bus'] AS bus FROM devices WHERE line = 1").to_pylist() == [{"bus": "1b:00"}]
    assert store.query("SELECT count(*) AS n FROM events WHERE fields IS NULL AND text IS NULL").to_pylist() == [
        {"n": 1}
    ]


@given(
    texts=st.lists(st.one_of(st.none(), TEXT.map(lambda data: data.decode("latin-1"))), max_size=8),
    first=st.integers(0, 3),
)
def test_a_column_is_redacted_like_each_of_its_texts(texts, first):
    """Also a slice of one, with NULL in it."""
    batch = pa.record_batch({"text": pa.array(texts, pa.string())})[first:]
    expected = [text if text is None else redact_text(text) for text in texts[first:]]
    assert redact_batch(batch).column("text").to_pylist() == expected


def test_rows_without_secrets_are_passed_on_untouched():
    batch = rows_of("links", [{"artefact": "0" * 64, "host": "n1", "via": "P2P/IPC/read"}]).batch
    assert redact_batch(batch) is batch


@pytest.mark.parametrize(("first", "length"), [(0, 4), (1, 3), (2, 1), (1, 1)])
def test_fields_are_redacted_in_a_slice_of_rows_too(first, length):
    """Rows of which some have no fields; their other fields stay with them."""
    fields = [{"a": "1"}, {"password": SECRET, "b": "2"}, None, {"c": f"MY_CREDS={SECRET}", "d": "4"}]
    expected = [
        {"a": "1"},
        {"password": "*" * len(SECRET), "b": "2"},
        None,
        {"c": f"MY_CREDS={'*' * len(SECRET)}", "d": "4"},
    ]
    batch = rows_of("events", [{"artefact": "0" * 64, "fields": words} for words in fields]).batch
    got = redact_batch(batch.slice(first, length)).column("fields").to_pylist()
    assert [words if words is None else dict(words) for words in got] == expected[first : first + length]
