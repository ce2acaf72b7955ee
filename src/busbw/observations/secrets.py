"""What never enters: values of variables outside an allow-list, tokens, keys. Dropped at the door, not hidden later.

Benchmark JSON dumps whole environments (nccl-tests -J) and command lines carry tokens. `redact` keeps the length of the
text, so that byte offsets stay true in the kept copy of an artefact. Where it errs, it blanks too much.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["is_allowed_variable", "redact", "redact_batch", "redact_text"]

_ALLOWED_PREFIXES = (
    "NCCL_", "RCCL_", "UCX_", "UCC_", "FI_", "NVSHMEM_", "NIXL_", "OFI_NCCL_", "SHARP_", "HCOLL_", "MSCCLPP_",
    "HSA_", "AMD_", "CUDA_", "HIP_", "ROCR_", "NVIDIA_VISIBLE_", "OMPI_MCA_", "PMIX_MCA_", "TORCH_NCCL_",
    "TORCH_DISTRIBUTED_", "TORCH_CPP_", "GLOO_", "MPICH_", "I_MPI_", "MV2_", "OMP_", "KMP_", "IBV_", "MLX5_",
    "RDMAV_", "EFA_", "GPU_", "SLURM_JOB_", "SLURM_CPU_", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_NNODES", "SLURM_NODEID",
)  # fmt: skip
_ALLOWED_NAMES = frozenset({
    "LD_LIBRARY_PATH", "LD_PRELOAD", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "NODE_RANK",
    "GROUP_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK", "VLLM_ALLREDUCE_USE_SYMM_MEM",
})  # fmt: skip
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|COOKIE|SESSION|AUTH", re.IGNORECASE
)
_WORDS_OF_THE_FIELD = frozenset(
    {
        "P2P",
        "D2D",
        "H2D",
        "D2H",
        "GDR",
        "SHM",
        "NET",
        "MTU",
        "QPN",
        "PSN",
        "LID",
        "GID",
        "SL",
        "BW",
        "MNNVL",
        "NVLS",
        "PXN",
        "CE",
        "SM",
    }
)
"""Words in capitals that tools print before an equals sign and that name no variable: `P2P=Enabled`."""
_SHOUTED = re.compile(rb"[A-Z_][A-Z0-9_]*")

_NAME = rb"(?P<name>[A-Za-z_][A-Za-z0-9_]{1,127})"
_STRING = rb"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_NOT_IN_NAMES = bytes(
    byte if (byte < 128 and chr(byte).isalnum()) or byte == ord("_") else ord(" ") for byte in range(256)
)
"""Translation that leaves names and turns all between them into spaces."""
_ESCAPE = re.compile(rb"\\(?:[nrt0]|u00[01][0-9a-fA-F])")
"""A line break or NUL between two variables, as JSON strings write it."""

# What follows NAME= ; quotes around `value` stay.
_WORD_VALUE = re.compile(rb"(?P<value>" + _STRING + rb"""|(?:[^\s"'\\\x00]|\\.)+)""")
_LINE_VALUE = re.compile(rb"(?P<value>(?:(?!\s[A-Z_][A-Z0-9_]+=)[^\r\n\x00])+)")
"""In a line of `env`: up to the end of the line, spaces included."""
_ITEM_VALUES = {
    b'"': re.compile(rb'(?P<value>(?:[^"\\\n]|\\.)*)"'),
    b"'": re.compile(rb"(?P<value>(?:[^'\\\n]|\\.)*)'"),
    b'\\"': re.compile(rb'(?P<value>(?:\\\\(?:\\.|[^\\\n])|\\[^"\\\n]|[^"\\\n])*)\\"'),
}
"""In a list of strings, up to the quote that opened before NAME; also in JSON that is a string of other JSON."""

# All but _ENV_ITEM, _SPREAD_OPTION and _PRIVATE_KEY stay within a line.
_QUOTED_PAIR = re.compile(rb"""(?P<quote>["'])""" + _NAME + rb"(?P=quote) ?:\s*(?P<value>" + _STRING + rb")")
_ESCAPED_PAIR = re.compile(
    rb'\\"' + _NAME + rb'\\"\s*:\s*\\"(?P<value>(?:\\\\(?:\\.|[^\\\n])|\\[^"\\\n]|[^"\\\n])*)\\"'
)
"""The pair in JSON that is a string of other JSON."""
_ENV_ITEM = re.compile(
    rb"""["']?\bname["']?\s*:\s*["']?"""
    + _NAME
    + rb"""["']?\s*,?\s*["']?value["']?\s*:\s*(?P<value>"""
    + _STRING
    + rb"""|[^\s"',}\]]+)"""
)
"""An entry of `env` in a Kubernetes manifest, YAML or JSON."""
_SECRET_WORDS = (b"token", b"secret", b"passw", b"api", b"access", b"credential")
"""One of them is in every match of _SECRET_END."""
_SECRET_END = rb"(?:token|secret|passw(?:or)?d|api[_\-]?key|access[_\-]?key|credentials?)"
_SECRET_PAIR = re.compile(
    rb"""(?i)(?<![A-Za-z0-9_])[A-Za-z0-9_.\-]{0,64}"""
    + _SECRET_END
    + rb"""["']?[ \t]*:[ \t]*(?P<value>"""
    + _STRING
    + rb"""|[^\s"',}\]]+)"""
)
_SECRET_OPTION = re.compile(
    rb"(?i)--?[a-z0-9_\-]{0,64}"
    + _SECRET_END
    + rb"""[a-z0-9_\-]*(?:[= \t]+|["'],[ \t]*(?=["']))(?P<value>"""
    + _STRING
    + rb"""|[^\s\-"'][^\s"']*)"""
)
_BANNER_OPTION = re.compile(
    rb"""(?i)\(--[a-z0-9_\-]{0,64}(?:token|secret|passw|access[_\-]?key|account[_\-]?key|api[_\-]?key|credential|connection[_\-]?string)"""
    rb"""[a-z0-9_\-]{0,64}(?:=[^)\n]{0,128})?\)[ \t]*:[ \t]*(?P<value>[^\n\r]+)"""
)
"""A configuration that a program prints with the option in brackets: `S3 secret key (--obj_secret_key=key)   : VALUE`. Source: nixlbench,
xferBenchConfig::printConfig."""
_BANNER_MARKERS = (b"(--",)
_SPREAD_OPTION = re.compile(
    rb"""(?i)["']--?[a-z0-9_\-]{0,64}""" + _SECRET_END + rb"""[a-z0-9_\-]*["'],\s*(?P<value>""" + _STRING + rb")"
)
"""An option and its value as two strings of a list, also on two lines."""
_USER = rb"""(?!\d+:\d+\b)[^\s"':/]+:"""
"""Not two numbers: `docker run --user 1000:1000`."""
_USER_OPTION = rb"(?<![\w\-])(?:-[uU]|--(?:proxy-)?user)"
_PASSWORD_OPTIONS: tuple[tuple[Sequence[bytes], re.Pattern[bytes]], ...] = (
    ([b"-u"], re.compile(_USER_OPTION + rb"""(?:[= \t]*|["'],[ \t]*)["']""" + _USER + rb"""(?P<value>[^"'\n]+)""")),
    ([b"-u"], re.compile(_USER_OPTION + rb"[= \t]*" + _USER + rb"""(?P<value>[^\s"']+)""")),
    (
        [b"mysql", b"mariadb", b"sshpass"],
        re.compile(
            rb"""(?i)\b(?:mysql|mariadb|sshpass)[^\n|;&]{0,500}?[\s"']-p(?:[ \t]*|["'],[ \t]*)(?P<value>"""
            + _STRING
            + rb"""|(?!-)[^\s"']+)"""
        ),
    ),
)
"""Passwords that only the program they are given to tells: `curl -u name:password`, `mysql -ppassword`. mysql takes the word after a
lone `-p` for a database; people write passwords there."""
_SET_TO = re.compile(rb"\b(?P<name>[A-Z_][A-Z0-9_]{1,127}) set (?:by [a-z ]{1,32})?to (?P<value>[^\s,]+)")
"""How NCCL reports a variable. Source: NCCL, src/misc/param.cc, src/init.cc."""
_SET_MARKERS = (b" set by ", b" set to ")
_PRIVATE_KEY = re.compile(rb"(?P<value>-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*)")
_BARE: tuple[tuple[Sequence[bytes], re.Pattern[bytes]], ...] = (
    (
        [b"hf_", b"gho_", b"ghp_", b"ghs_", b"github_pat", b"glpat-", b"xox", b"sk-", b"sk_", b"pk_", b"npm_", b"pypi-", b"rk_"],
        re.compile(rb"\b(?P<value>(?:hf|gh[pos]|github_pat|glpat|xox[abp]|[spr]k|npm|pypi)[-_][A-Za-z0-9_\-]{16,})"),
    ),
    ([b"akia"], re.compile(rb"\b(?P<value>AKIA[0-9A-Z]{16})\b")),
    ([b"eyj"], re.compile(rb"\b(?P<value>eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+)?)")),
    ([b"bearer", b"basic"], re.compile(rb"(?i)\b(?:bearer|basic)[ \t]+(?P<value>[A-Za-z0-9+/=._\-]{12,})")),
    (
        [b"accountkey=", b"sharedaccess"],
        re.compile(rb"(?i)\b(?:AccountKey|SharedAccess(?:Key|Signature))=(?P<value>[^;\s\"']+)"),
    ),
    ([b"://"], re.compile(rb"(?<=://)(?P<value>[^/\s:@]+:[^/\s@]+)(?=@)")),
)  # fmt: skip
"""Tokens that their shape gives away, with text that a line must have, in lower case, to hold one."""

_PAIR_MARKERS = (b'":', b'" :', b"':", b"' :")
_ESCAPED_MARKER = b'\\"'
_ENV_MARKER = b"value"
_SPREAD_MARKERS = (b'"-', b"'-")
_KEY_MARKER = b"-----begin "
_MARKERS = (
    *_PAIR_MARKERS,
    _ESCAPED_MARKER,
    _ENV_MARKER,
    *_SECRET_WORDS,
    *_SPREAD_MARKERS,
    *_BANNER_MARKERS,
    *(marker for markers, _ in _BARE for marker in markers),
    *(marker for markers, _ in _PASSWORD_OPTIONS for marker in markers),
    _KEY_MARKER,
)
"""In lower case: where none of them is and no NAME= may be denied, nothing is blanked."""
_SUSPECT = "[A-Z0-9_]=|(?i:" + "|".join([_SECRET_NAME.pattern, *(re.escape(m.decode()) for m in _MARKERS)]) + ")"
"""What a line must have for anything to be blanked; a name that `_is_denied` ends in capitals or holds a secret word."""
_LARGE_BYTES = 2**20
"""From here on, loading pyarrow.compute (0.06 s) costs less than looking for every marker in all lines."""


def is_allowed_variable(name: str) -> bool:
    """Whether the value of an environment variable may be kept.

    >>> [is_allowed_variable(name) for name in ("NCCL_IB_HCA", "AWS_SECRET_ACCESS_KEY", "NCCL_AUTH_TOKEN")]
    [True, False, False]
    """
    if _SECRET_NAME.search(name):
        return False
    return name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES)


def redact(data: bytes) -> bytes:
    r"""The same bytes with values that must not be kept turned into `*`, byte for byte: length and line breaks stay.

    Blanks the value of NAME=VALUE and of "NAME": "VALUE" when NAME reads like a variable and is not allowed or reads
    like a secret, values of options such as --token, `-u name:password`, mysql's -p, and bare tokens of well-known shapes.
    Sees no secret in compressed or encoded text, nor that of a variable written NAME: VALUE without quotes unless NAME
    ends like token or password.

    >>> redact(b'"HF_TOKEN=hf_abc", "NCCL_DEBUG=INFO"')
    b'"HF_TOKEN=******", "NCCL_DEBUG=INFO"'
    """
    lower = data.lower()
    suspects = _suspects(data) if len(data) >= _LARGE_BYTES else lower

    def found(markers: Sequence[bytes]) -> list[bytes]:
        return [marker for marker in markers if marker in suspects]

    data = _sub_lines(found(_BANNER_MARKERS), _BANNER_OPTION, _blank, data, lower)
    if b"=" in suspects:
        data = _without_denied_assignments(data)
    data = _sub_lines(found(_PAIR_MARKERS), _QUOTED_PAIR, _if_denied, data, lower)
    data = _sub_lines(found([_ESCAPED_MARKER]), _ESCAPED_PAIR, _if_denied, data, lower)
    if _ENV_MARKER in suspects:
        data = _ENV_ITEM.sub(_if_denied, data)
    words = found(_SECRET_WORDS)
    if words:
        for pattern in (_SECRET_PAIR, _SECRET_OPTION):
            data = _sub_lines(words, pattern, _blank, data, lower)
    if words and found(_SPREAD_MARKERS):
        data = _SPREAD_OPTION.sub(_blank, data)
    data = _sub_lines(found(_SET_MARKERS), _SET_TO, _if_denied, data, lower)
    for markers, pattern in (*_PASSWORD_OPTIONS, *_BARE):
        data = _sub_lines(found(markers), pattern, _blank, data, lower)
    if _KEY_MARKER in suspects:
        data = _PRIVATE_KEY.sub(_blank, data)
    return data


def redact_text(text: str) -> str:
    """`redact` for one line of text that is shown or stored; its length may differ where a value is not ASCII."""
    return redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


_OUR_WORDS = frozenset({"artefact", "event", "level", "tool"})
"""Columns in which busbw's own words stand, not the input's."""


def redact_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with `redact_text` done to every string, also those in maps; a value whose variable is denied is blanked.

    A batch without anything suspicious comes back as it is, for the price of one search a column.

    >>> import pyarrow as pa
    >>> redact_batch(pa.record_batch({"name": ["NCCL_AUTH_TOKEN"], "value": ["1234"]})).to_pylist()
    [{'name': 'NCCL_AUTH_TOKEN', 'value': '****'}]
    """
    import pyarrow as pa  # noqa: PLC0415 - not for those who redact text only

    given, names = batch.columns, batch.schema.names
    texts = {i: column for i, column in enumerate(given) if names[i] not in _OUR_WORDS and _texts(column) is not None}
    columns = list(given)
    for i, suspicious in zip(texts, _are_suspicious([_texts(column) for column in texts.values()]), strict=True):
        columns[i] = _redacted_column(texts[i], suspicious)
    if "name" in names and "value" in names and pa.types.is_string(batch.schema.field("value").type):
        value = names.index("value")
        columns[value] = _redacted_values(given[names.index("name")], columns[value])
    if all(new is old for new, old in zip(columns, given, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _texts(column: pa.Array) -> pa.Array | None:
    """The strings of a column, or of the maps in it; None if it has none."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_map(column.type):
        column = column.items
    return column if pa.types.is_string(column.type) else None


def _are_suspicious(columns: Sequence[pa.Array]) -> list[bool]:
    """Whether anything in each of these columns may have to be blanked; the bytes of a column are searched as one text."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    wholes = []
    for column in columns:
        _, offsets, data = column.buffers()
        text = pa.py_buffer(b"")
        if len(column) and data is not None:
            bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            text = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        ends = pa.py_buffer(np.array([0, text.size], np.int64))
        wholes.append(pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, text]))
    if not wholes:
        return []
    found: list[bool] = pc.match_substring_regex(pa.concat_arrays(wholes), _SUSPECT).to_pylist()
    return found


def _redacted_column(column: pa.Array, suspicious: bool) -> pa.Array:
    """The column itself if nothing in it changes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if pa.types.is_string(column.type):
        return _redacted_strings(column) if suspicious else column
    keys, items = column.keys, column.items
    blanked = _redacted_values(keys, _redacted_strings(items) if suspicious else items)
    if blanked is items:
        return column
    whole = pa.MapArray.from_arrays(column.offsets, keys, blanked)
    rows = pc.if_else(column.is_valid(), pa.array(range(len(whole)), pa.int64()), None)
    return whole.take(rows) if column.null_count else whole


def _redacted_strings(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc  # noqa: PLC0415

    return _replaced(column, pc.match_substring_regex(column, _SUSPECT), redact_text)


def _redacted_values(names: pa.Array, values: pa.Array) -> pa.Array:
    """Values of variables; those whose name is denied become asterisks."""
    import pyarrow.compute as pc  # noqa: PLC0415

    denied = pc.match_substring_regex(names, f"(?i:{_SECRET_NAME.pattern})")
    return _replaced(values, denied, lambda value: "*" * len(value)) if pc.any(denied).as_py() else values


def _replaced(column: pa.Array, where: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """The column itself if nothing changes."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    where = pc.and_(pc.fill_null(where, False), column.is_valid())
    old = column.filter(where).to_pylist()
    known = {text: change(text) for text in set(old)}
    if all(text == new for text, new in known.items()):
        return column
    return pc.replace_with_mask(column, where, pa.array([known[text] for text in old], column.type))


def _suspects(data: bytes) -> bytes:
    """The lines that have anything to be blanked for, in lower case; all markers are sought at once, by RE2."""
    import pyarrow as pa  # noqa: PLC0415 - for large files only
    import pyarrow.compute as pc  # noqa: PLC0415

    lines = pc.split_pattern(pa.array([data], pa.large_binary()), "\n").flatten()
    return b"\n".join(lines.filter(pc.match_substring_regex(lines, _SUSPECT)).to_pylist()).lower()


def _blank(match: re.Match[bytes]) -> bytes:
    """The match with its value blanked; the quotes around the value stay."""
    text, start, end = match[0], match.start("value") - match.start(), match.end("value") - match.start()
    if end - start >= 2 and text[start] == text[end - 1] and text[start] in b"\"'":
        start, end = start + 1, end - 1
    return text[:start] + re.sub(rb"[^\n\r]", b"*", text[start:end]) + text[end:]


@functools.lru_cache(maxsize=4096)
def _is_denied(name: bytes) -> bool:
    text = name.decode("ascii")
    if text in _WORDS_OF_THE_FIELD:
        return False
    return bool(_SECRET_NAME.search(text) or (_SHOUTED.fullmatch(name) and not is_allowed_variable(text)))


def _if_denied(match: re.Match[bytes]) -> bytes:
    """The match, its value blanked if the variable may not be kept."""
    return _blank(match) if _is_denied(match["name"]) else match[0]


def _without_denied_assignments(data: bytes) -> bytes:
    """Blanks values after NAME= . From each `=` it looks back for the name: most lines have none and cost nothing."""
    names = data.translate(_NOT_IN_NAMES)
    pieces, done, at = [], 0, data.find(b"=")
    while at >= 0:
        start = names.rfind(b" ", max(0, at - 136), at) + 1
        escape = _ESCAPE.match(data, start - 1, at) if start else None
        start = escape.end() if escape else start
        name = data[start:at]
        match = None
        if 2 <= len(name) <= 128 and not name[:1].isdigit() and _is_denied(name):
            match = _value_after(data, start, at + 1)
        if match is None:
            at = data.find(b"=", at + 1)
            continue
        pieces += [data[done : at + 1], _blank(match)]
        done = match.end()
        at = data.find(b"=", done)
    return b"".join([*pieces, data[done:]])


def _value_after(data: bytes, name: int, value: int) -> re.Match[bytes] | None:
    """The value of an assignment; how far it goes depends on what stands before the name."""
    before = data[max(0, name - 2) : name]
    for quote, pattern in _ITEM_VALUES.items():
        if (before == quote if len(quote) == 2 else before[-1:] == quote and before[:1] != b"\\") and (
            match := pattern.match(data, value)
        ):
            return match
    line = data[max(0, data.rfind(b"\n", max(0, name - 16), name) + 1, name - 16) : name]
    if line in {b"", b"export ", b"declare -x ", b"setenv "}:
        return _LINE_VALUE.match(data, value)
    return _WORD_VALUE.match(data, value)


def _sub_lines(
    markers: Sequence[bytes],
    pattern: re.Pattern[bytes],
    replacement: Callable[[re.Match[bytes]], bytes],
    data: bytes,
    lower: bytes,
) -> bytes:
    """`pattern.sub` in the lines that hold a marker, the others cost little; `lower`: the same lines in lower case."""
    for marker in markers:
        pieces, done, at = [], 0, lower.find(marker)
        while at >= 0:
            start = lower.rfind(b"\n", done, at) + 1 or done
            end = lower.find(b"\n", at)
            end = len(data) if end < 0 else end
            pieces += [data[done:start], pattern.sub(replacement, data[start:end])]
            done, at = end, lower.find(marker, end)
        if pieces:
            data = b"".join([*pieces, data[done:]])
    return data
