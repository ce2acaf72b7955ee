"""Ranks that do not do the same: versions, networks, settings, collectives; ranks that are late, gone, or stuck together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from busbw.diagnosis.facts import Event, Facts, Setting, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import jobs

__all__ = ["DEATHS", "EFFECTS", "RULES", "is_job_program"]

DEATHS = (
    "kernel.killed", "kernel.segfault", "launcher.signal", "launcher.oom", "torch.child_signal", "torch.rank_exited",
)  # fmt: skip
"""Events that say that a process was killed or crashed."""

EFFECTS = frozenset({
    "nccl.peer_closed", "nccl.remote_result", "nccl.result_text", "torch.communicator_aborted", "torch.taken_down", "torch.store_lost",
    "nccl.proxy_failed", "nccl.service_closed", "nccl.backtrace", "launcher.died", "torch.child_failed", "nccl.abort_flag",
})  # fmt: skip
"""Events that follow from somebody else's failure, never the first cause."""

_Process = tuple[str | None, int | None]
_PERSONAL = re.compile(
    r"^(NCCL_SOCKET_IFNAME|NCCL_IB_GID_INDEX|NCCL_TOPO_FILE|NCCL_IB_HCA|NCCL_HOSTID|NCCL_DEBUG.*|NCCL_TOPO_DUMP.*|NCCL_GRAPH_.*|NCCL_COMM_ID|CUDA_VISIBLE_DEVICES|.*RANK.*|SLURM_.*|NCCL_NET_PLUGIN|"
    r"NCCL_GRAPH_DUMP_FILE|LD_LIBRARY_PATH|LD_PRELOAD|OMPI_.*|.*_LOCAL.*|NCCL_CONF_FILE)$"
)
"""Variables that may differ between ranks or hosts."""


def version_mismatch(facts: Facts) -> Iterator[Finding]:
    """Ranks run different versions of NCCL.

    Fires on NCCL's own check, and when hosts of one job print different versions: in one file, or in files whose communicators are the
    same. The line carries no host of its own; in a file of one host it is that host's. Silent on logs of two runs.
    """
    said = facts.all("nccl.version_mismatch")
    last: dict[str, tuple[int, ...]] = {}
    hosts: dict[str, set[str]] = defaultdict(set)
    """By job: a file that several hosts write to, or a communicator."""
    only_host = _hosts_of_files(facts)
    printed: list[Event] = []
    for version, event in facts.nccl_versions():
        host = event.host or only_host.get(event.at.path)
        if host is not None:
            last[host] = version
            hosts[event.at.path].add(host)
            printed.append(event)
    for event in facts.all("nccl.comm"):
        if event.host in last and event.fields.get("comm_id"):
            hosts[event.fields["comm_id"]].add(event.host)
    one_job = any(len({last[host] for host in members}) > 1 for members in hosts.values())
    if not said and one_job:
        yield Finding(
            "env-mismatch-between-ranks", 0.8, "fatal", "hosts of one job print different versions of NCCL", lines_of(printed),
            "Install the same NCCL (image, wheel) on every host.", ["NCCL_DEBUG=VERSION on every rank"],
        )  # fmt: skip
    if said:
        yield Finding(
            "env-mismatch-between-ranks", 0.88, "fatal", "ranks run different versions of NCCL", lines_of([*said, *(e for _, e in facts.nccl_versions())]),
            "Install the same NCCL (image, wheel) on every host.", ["grep 'NCCL version' on every rank (NCCL_DEBUG=VERSION)"],
        )  # fmt: skip


def _hosts_of_files(facts: Facts) -> dict[str, str]:
    """The host by file, for files in which one host makes communicators."""
    found: dict[str, set[str]] = defaultdict(set)
    for event in facts.all("nccl.comm"):
        if event.host is not None:
            found[event.at.path].add(event.host)
    return {path: next(iter(hosts)) for path, hosts in found.items() if len(hosts) == 1}


def networks_differ(facts: Facts) -> Iterator[Finding]:
    """Some ranks use another network plugin or transport than others; they cannot talk to each other.

    Fires when processes of one job name different networks. A process that tries one and settles on another counts with the last.
    Silent on one host, and on logs of several runs as far as their communicators tell them apart.
    Reads: network ("Using network", src/net.cc), communicators (src/init.cc).
    """
    last: dict[tuple[str | None, int | None], Event] = {}
    for event in facts.all("nccl.network"):
        if event.host is not None:
            last[event.host, event.pid] = event
    incompatible = facts.all("nccl.ib_incompatible", "nccl.ib_link_layer_mismatch")
    if incompatible:
        yield Finding(
            "net-plugin-mismatch", 0.75, "fatal", "ranks try to connect NICs of different link layers or kinds", lines_of(incompatible),
            "Choose NICs of one kind on all hosts with NCCL_IB_HCA.", ["ibv_devinfo | grep -e hca_id -e link_layer on every host"],
        )  # fmt: skip
    plugin_hosts: dict[str, list[Event]] = defaultdict(list)
    plain_hosts: dict[str, list[Event]] = defaultdict(list)
    for event in facts.all("nccl.net_plugin"):
        if event.host is not None and event.fields.get("network", "").lower() != "internal network":
            plugin_hosts[event.host].append(event)
    for event in facts.all("nccl.net_plugin_absent"):
        if event.host is not None:
            plain_hosts[event.host].append(event)
    alone = set(plugin_hosts) - set(plain_hosts)
    without = set(plain_hosts) - set(plugin_hosts)
    if alone and without and not last:
        yield Finding(
            "net-plugin-mismatch", 0.75, "fatal", f"{', '.join(sorted(alone)[:3])} loads a network plugin and {', '.join(sorted(without)[:3])} has none",
            lines_of([*(e for h in alone for e in plugin_hosts[h]), *(e for h in without for e in plain_hosts[h])]),
            "Install the plugin on all hosts or on none; NCCL_NET_PLUGIN=none leaves it out.", ["NCCL_DEBUG=INFO on every rank: 'Using network'"],
        )  # fmt: skip
    for job in _jobs(facts, last):
        by_network: dict[str, list[Event]] = defaultdict(list)
        for process in job:
            by_network[last[process].fields.get("network", "").split("(")[0].strip()].append(last[process])
        if len(by_network) < 2 or len({host for host, _ in job}) < 2:
            continue
        few = min(by_network.items(), key=lambda item: len(item[1]))
        others = [e for name, events in by_network.items() if name != few[0] for e in events]
        yield Finding(
            "net-plugin-mismatch", 0.85, "fatal", f"{len(few[1])} of {len(job)} processes use network {few[0]}, the others {', '.join(sorted(set(by_network) - {few[0]}))}",
            lines_of([*few[1][:6], *others[:4]]), "Make plugin, libraries and devices the same on every host; NCCL_NET=NAME makes the odd rank fail early.",
            ["NCCL_DEBUG=INFO on every rank: 'Using network'"],
        )  # fmt: skip
        return


def _jobs(facts: Facts, processes: Iterable[_Process]) -> list[list[_Process]]:
    """Processes (host, pid) by the job they belong to, as the communicators they share tell. One job if one of them names none."""
    job_of = {process: number for number, job in enumerate(jobs(facts)) for process in job.processes}
    found: dict[int | None, list[_Process]] = defaultdict(list)
    for process in processes:
        found[job_of.get(process)].append(process)
    return [[process for job in found.values() for process in job]] if None in found else list(found.values())


def settings_differ(facts: Facts) -> Iterator[Finding]:
    """A variable that must agree has different values on ranks of one job.

    Fires for NCCL_* variables of the log itself when at least two hosts (or ranks) print their environment. Variables that name devices,
    files or ranks may differ. Silent for trials on command lines. Where communicators tell several jobs apart, each is compared in itself.
    """
    said = [
        s for s in facts.settings if s.origin not in ("note", "command line") and s.name.startswith("NCCL_") and not _PERSONAL.match(s.name)
    ]  # fmt: skip
    printed = {
        (s.host, s.pid) for s in facts.settings if s.host is not None and s.origin not in ("note", "command line")
    }
    together = _jobs(facts, printed)
    for job in together if len(together) > 1 else [None]:
        members = None if job is None else set(job)
        differing = _differing(s for s in said if members is None or (s.host, s.pid) in members)
        if differing:
            names = sorted({s.name for s in differing})
            yield Finding(
                "env-mismatch-between-ranks", 0.75, "fatal", f"{', '.join(names[:4])} differs between hosts", lines_of(differing),
                "Give every rank the same NCCL_* variables (mpirun -x, one nccl.conf).", ["env | grep NCCL_ on every rank"],
            )  # fmt: skip


_MUST_AGREE = (
    "NCCL_PROTO", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL128_NTHREADS",
)  # fmt: skip
"""Variables from which each rank derives by itself how data is cut and sent (NVIDIA/nccl src/graph/tuning.cc, src/init.cc): ranks that differ wait for each other or break off."""


def set_on_some_hosts(facts: Facts) -> Iterator[Finding]:
    """A variable that chooses protocol, algorithm or buffers is set on some hosts of a communicator and not on the others.

    Fires for NCCL_PROTO, NCCL_ALGO and the sizes of buffers and blocks, where the hosts without it share a communicator with one that has it and print other
    variables, so that it would be seen. Silent where a host prints no variable, and for trials on command lines.
    """
    of_log = [s for s in facts.settings if s.host is not None and s.origin not in ("note", "command line")]
    shows = {s.host for s in of_log}
    members: dict[str, set[str]] = defaultdict(set)
    for event in facts.all("nccl.comm"):
        if event.host is not None and event.host in shows and event.fields.get("comm_id"):
            members[event.fields["comm_id"]].add(event.host)
    for name in _MUST_AGREE:
        having = [s for s in of_log if s.name == name]
        hosts = {s.host for s in having}
        lacking = {host for job in members.values() if job & hosts for host in job - hosts}
        if having and lacking:
            others = list({s.host: s for s in of_log if s.host in lacking}.values())
            yield Finding(
                "env-mismatch-between-ranks", 0.72, "fatal", f"{name} is set on {len(hosts)} hosts of a communicator and not on {', '.join(sorted(lacking)[:4])}",
                lines_of([*list({s.host: s for s in having}.values())[:6], *others[:4]]),
                "Give every rank the same NCCL_* variables (mpirun -x, one nccl.conf).", ["env | grep NCCL_ on every rank"],
            )  # fmt: skip


def _differing(settings: Iterable[Setting]) -> list[Setting]:
    """Of every variable that has one value in each place, and not the same in all, one line a place."""
    said: dict[str, dict[str, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for setting in settings:
        place = (
            setting.host if setting.host is not None else (f"rank {setting.rank}" if setting.rank is not None else None)
        )
        if place is not None:
            said[setting.name][place].append(setting)
    differing: list[Setting] = []
    for places in said.values():
        values = {s.value for found in places.values() for s in found}
        if len(places) > 1 and len(values) > 1 and all(len({s.value for s in found}) == 1 for found in places.values()):
            differing += [found[0] for found in places.values()]
    return differing


def collectives_differ(facts: Facts) -> Iterator[Finding]:
    """Ranks call different collectives, or the same with other sizes or types.

    Fires on PyTorch's fingerprint check (TORCH_DISTRIBUTED_DEBUG=DETAIL) and on truncated messages of NCCL. If only the sequence numbers
    differ, for a barrier, the checker itself is the likelier culprit. A traceback of one of the two ranks says why it left.
    Lengths that are whole slots of two protocols say that the ranks chose different ones: settings or versions differ, or the counts do.
    Silent on lengths that no collective has: those come from a stranger at the bootstrap socket.
    """
    for event in facts.all("torch.fingerprint_mismatch")[:4]:
        first, second = event.fields.get("first_print", ""), event.fields.get("second_print", "")
        operations = [re.search(r"OpType=(\w+)", text) for text in (first, second)]
        shapes = [re.search(r"TensorShape=\[([^\]]*)\]", text) for text in (first, second)]
        same_op = all(operations) and operations[0][1] == operations[1][1]  # type: ignore[index]
        same_shape = (shapes[0] and shapes[0][1]) == (shapes[1] and shapes[1][1])
        tracebacks = facts.all("torch.traceback")
        lines = lines_of(
            [event, *tracebacks, *facts.all("torch.collective_call"), *facts.setting("TORCH_DISTRIBUTED_DEBUG")]
        )
        false_alarm = bool(same_op and same_shape and operations[0][1] == "BARRIER")  # type: ignore[index]
        if same_op and same_shape:
            yield Finding(
                "debug-tool-false-positive", 0.6 if false_alarm else 0.4, "minor", "the collectives agree; only the checker's sequence numbers differ", lines,
                "Run without TORCH_DISTRIBUTED_DEBUG=DETAIL to confirm; upgrade PyTorch.", ["run once without TORCH_DISTRIBUTED_DEBUG=DETAIL"],
            )  # fmt: skip
        yield Finding(
            "collective-mismatch", 0.35 if false_alarm else (0.5 if same_op and same_shape else 0.85), "fatal",
            f"rank {event.fields.get('first', '?')} and rank {event.fields.get('second', '?')} call different collectives", lines,
            "Make every rank issue the same collectives in the same order (no rank-dependent branches, same metric keys, same number of batches); read the traceback of the rank that left.",
            ["TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and compare the Flight Recorder dumps of all ranks"],
        )  # fmt: skip
        return
    mismatched = facts.all("nccl.collective_mismatch", "torch.flight_mismatch")
    if mismatched:
        yield Finding(
            "collective-mismatch", 0.85, "fatal", "ranks issue collectives of different size or kind", lines_of(mismatched),
            "Make every rank issue the same collectives with the same counts; the same NCCL_* variables on all ranks.",
            ["NCCL_DEBUG_SUBSYS=COLL on all ranks; compare counts at the same opCount"],
        )  # fmt: skip
    short = [
        e
        for e in facts.all("nccl.message_truncated")
        if e.file == "bootstrap.cc" and (e.number("got") or 0) <= 2**20 and (e.number("want") or 0) <= 2**20
    ]
    if short:
        lines = lines_of([*short, *(e for _, e in facts.nccl_versions())])
        tell = [
            "grep 'NCCL version' on every rank",
            "env | grep NCCL_ on every rank",
            "the same run with another NCCL version",
        ]
        yield Finding(
            "env-mismatch-between-ranks",
            0.45,
            "fatal",
            "ranks disagree during start-up: one sends another kind of message",
            lines,
            "Use the same NCCL version and settings on all ranks.",
            tell,
        )
        yield Finding(
            "library-bug-version",
            0.4,
            "fatal",
            "ranks fall out of step during start-up",
            lines,
            "Try another NCCL version.",
            tell,
        )
    truncated = [
        e
        for e in facts.all("nccl.message_truncated")
        if e.file != "bootstrap.cc" and (e.number("got") or 0) <= 2**20 and "receiving" in e.text.lower()
    ]
    slots = [e for e in truncated if _other_protocol(e.number("got"), e.number("want"))]
    if slots:
        yield Finding(
            "env-mismatch-between-ranks", 0.55, "fatal", "one end sends whole slots of one protocol, the other waits for those of another: NCCL_PROTO, NCCL_BUFFSIZE or versions differ",
            lines_of(slots), "Give every rank the same NCCL version and NCCL_* variables.", ["env | grep NCCL_ on every rank", "grep 'NCCL version' on every rank"],
        )  # fmt: skip
    if truncated:
        yield Finding(
            "collective-mismatch", 0.35 if slots else 0.6, "fatal", "a message was longer than the receiver expected: counts differ between ranks", lines_of(truncated),
            "Give send and receive the same count and type on both ranks.", ["NCCL_DEBUG_SUBSYS=COLL on all ranks; compare counts at the same opCount"],
        )  # fmt: skip


_LL_SLOT = 8 * 512 * 16
"""Bytes of a slot of protocol LL: 8 lines of 16 bytes for each of 512 threads (NVIDIA/nccl src/include/device.h)."""
_LL128_SLOT = 120 * 640 * 8
"""Bytes of a slot of protocol LL128: 120 elements of 8 bytes for each of 640 threads (src/include/device.h)."""


def _other_protocol(got: int | None, want: int | None) -> bool:
    """Whether two sizes are whole slots of two protocols: LL and LL128 have fixed ones, Simple's is NCCL_BUFFSIZE/8, a power of two (512 KiB)."""
    if got is None or want is None or got == want:
        return False
    fixed = {_LL_SLOT, _LL128_SLOT}
    return bool(fixed & {got, want}) and all(n in fixed or (n >= _LL_SLOT and n & (n - 1) == 0) for n in (got, want))


def debugger_noise(facts: Facts) -> Iterator[Finding]:
    """A debugger or sanitizer reports API errors that the program asks for and handles.

    Fires on cuda-gdb's notes about peer access that is already enabled (704) and on compute-sanitizer's about a driver symbol that is looked
    up and not there (500): NCCL probes both. Silent on memory errors of these tools.
    """
    probes = [
        e
        for e in facts.all("debug.cuda_gdb")
        if e.fields.get("code", "").lower() in ("0x2c0", "704") or "GetLastError" in e.text
    ]
    probes += [e for e in facts.all("debug.sanitizer") if "GetProcAddress" in e.text or "PeerAccess" in e.text]
    if probes:
        yield Finding(
            "debug-tool-false-positive", 0.8, "minor", "the tool reports API results that NCCL expects and handles", lines_of(probes),
            "Ignore them (compute-sanitizer --report-api-errors no; cuda-gdb: set cuda api_failures ignore).", ["run once without the tool"],
        )  # fmt: skip


def rank_behind(facts: Facts) -> Iterator[Finding]:
    """A rank has not reached the collective that the others wait in.

    Fires when the operations launched (ncclras), the work enqueued (PyTorch watchdog) or the missing ranks of a Flight Recorder report show
    one rank behind, and on a monitored barrier that a rank did not pass. The rank that is behind is the suspect.
    Silent when all counts are equal.
    """
    launched = [(e.number("operation"), e) for e in facts.all("ras.rank_at", "ras.ranks_at")]
    missing = facts.all("torch.missing_ranks")
    barrier = facts.all("torch.barrier_missed")
    status = [(e.number("enqueued"), e) for e in facts.all("torch.work_status") if e.number("enqueued") is not None]
    watchdog = facts.all("torch.watchdog_timeout")
    tell = ["py-spy dump --pid PID of that rank", "ncclras -v on its node"]
    remedy = "Look at that rank's stack and log at the time: data loading, compilation, checkpoint, an exception; a longer timeout only hides it."
    counts = {n for n, _ in launched if n is not None}
    if len(counts) > 1:
        behind = [e for n, e in launched if n == min(counts)]
        yield Finding(
            "rank-late-or-stuck", 0.88, "fatal", f"{_who(behind[0])} {max(counts) - min(counts)} operations behind the others",
            lines_of([*(e for _, e in launched), *facts.all("ras.rank"), *missing, *facts.all("ras.comm"), *watchdog]), remedy, tell,
        )  # fmt: skip
    elif missing or barrier:
        yield Finding(
            "rank-late-or-stuck", 0.85, "fatal", "a rank did not arrive where the others wait", lines_of([*missing, *barrier, *watchdog, *facts.all("ras.comm")]), remedy, tell,
        )  # fmt: skip
    elif len({n for n, _ in status}) > 1 and len(status) > 1:
        low = min(n for n, _ in status if n is not None)
        behind = [e for n, e in status if n == low]
        yield Finding(
            "rank-late-or-stuck", 0.75, "fatal", f"rank {behind[0].fields.get('rank', '?')} has enqueued the least work ({low})", lines_of([*behind, *watchdog, *(e for _, e in status)]), remedy, tell,
        )  # fmt: skip


def _who(event: Event) -> str:
    return (
        f"rank {event.fields['rank']} is" if "rank" in event.fields else f"{event.fields.get('ranks', '?')} ranks are"
    )


def timeout_without_witness(facts: Facts) -> Iterator[Finding]:
    """A collective timed out; what was read decides between a rank that is missing and a data path that is stuck.

    Fires on PyTorch's watchdog. If RAS says that all ranks launched the same operations, or every rank has work enqueued beyond the one
    that is stuck, the data path is; with operations that differ at one sequence number it is a mismatch; alone it is open.
    Silent when a report names the rank that is missing.
    """
    timeouts = facts.all("torch.watchdog_timeout")
    if (
        not timeouts
        or facts.all("torch.missing_ranks", "torch.barrier_missed")
        or len({e.number("operation") for e in facts.all("ras.rank_at")}) > 1
    ):
        return
    by_sequence: dict[str, set[str]] = defaultdict(set)
    for event in timeouts:
        if "seq" in event.fields:
            sizes = re.sub(r"Timeout\(ms\)=\d+", "", event.fields.get("work", ""))
            by_sequence[event.fields["seq"]].add(f"{event.fields.get('op')} {sizes}")
    groups = [
        e
        for e in facts.all("ras.group", "ras.comm")
        if "OK" in e.fields.get("errors", "") or "RUNNING" in e.fields.get("status", "")
    ]
    status = facts.all("torch.work_status")
    ahead = [e for e in status if (e.number("enqueued") or 0) > (e.number("completed") or 0) + 1]
    lines = lines_of([*timeouts[:5], *status[:5], *groups])
    tell = [
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1: Flight Recorder of all ranks",
        "ncclras -v while it hangs",
        "NIC counters and Xid on the nodes of this group",
    ]
    if any(len(ops) > 1 for ops in by_sequence.values()):
        weights = {"collective-mismatch": 0.75, "rank-late-or-stuck": 0.15}
    elif groups and ahead:
        weights = {"hang-inside-collective": 0.8, "rank-late-or-stuck": 0.1}
    elif groups:
        weights = {"hang-inside-collective": 0.7, "rank-late-or-stuck": 0.2}
    elif len(by_sequence) > 1:
        weights = {"rank-late-or-stuck": 0.6, "collective-mismatch": 0.25}
    elif ahead:
        weights = {"hang-inside-collective": 0.45, "rank-late-or-stuck": 0.4}
    else:
        weights = {"rank-late-or-stuck": 0.42, "hang-inside-collective": 0.35, "collective-mismatch": 0.1}
    what = {
        "hang-inside-collective": ("all ranks entered the collective and it makes no progress", "Look below the API: NIC counters and link state, Xid and ECC, NCCL's proxy threads of the ranks of this group."),
        "rank-late-or-stuck": ("a rank may not have reached the collective", "Find the rank whose last enqueued work is lowest; look at its stack."),
        "collective-mismatch": ("ranks may have issued different collectives", "Compare operation, size and type at the same sequence number on all ranks."),
    }  # fmt: skip
    for kind, weight in weights.items():
        yield Finding(
            kind, weight, "fatal", f"{len(timeouts)} collectives timed out: {what[kind][0]}", lines, what[kind][1], tell
        )


_JOB_PROGRAM = re.compile(
    r"python|_perf|torch|ray|train|vllm|sglang|mpi|orted|slurmstep|deepspeed|osu_|ucx|trt|triton|pt_(?:main|data)|nccl|julia|bench",
    re.IGNORECASE,
)
"""Names of programs that take part in GPU jobs."""


def is_job_program(facts: Facts, event: Event) -> bool:
    """Whether the process of a kernel message may be a rank: by its name, or by its pid in a log of the job."""
    pids = {pid for _, pid in facts.processes}
    return _JOB_PROGRAM.search(event.fields.get("name", "")) is not None or event.number("pid") in pids


def process_died(facts: Facts) -> Iterator[Finding]:
    """A process of the job ended; closed connections and remote errors on the others follow from it.

    Minor where neither name nor pid ties a killed process to the job and no peer complains. Fires on a process killed, crashed or out of memory (kernel, launcher), weakly on closed connections or an exit code alone,
    on a segmentation fault in a log, and on the kernel's memory killer called by a program of a job. Silent
    about the service thread's "Connection closed by localRank", which a normal end prints too, and about a store that IPv6 does not reach.
    """
    died = facts.all(*DEATHS)
    by_itself = [e for e in died if "exit code" in e.text.lower()]
    died = [e for e in died if e not in by_itself]
    died += [e for e in facts.all("torch.child_failed") if (e.number("code") or 0) < 0]
    strangers = [e for e in died if e.name in ("kernel.killed", "kernel.segfault") and not is_job_program(facts, e)]
    strange = {e.at for e in strangers}
    died = [e for e in died if e.at not in strange]
    oom = [e for e in facts.all("kernel.oom_invoked") if is_job_program(facts, e)]
    crashed = facts.all("crash.segfault")
    effects = facts.all(
        "nccl.peer_closed",
        "nccl.remote_result",
        "torch.store_lost",
        "launcher.died",
        "torch.communicator_aborted",
        "mpi.peer_lost",
    )
    effects = [
        e for e in effects if "errno: 97" not in e.text
    ] + by_itself  # IPv6 was tried first: healthy jobs warn so
    completions = [e for e in facts.all("nccl.ib_completion") if e.number("status") == 5]
    if strangers and not died and not effects and not completions:
        yield Finding(
            "peer-process-died", 0.3, "minor", "a process was killed or crashed on this host; nothing ties it to the job", lines_of(strangers),
            "Compare its pid and name with the ranks of the job.", ["ps or the scheduler's accounting at that time"],
        )  # fmt: skip
    died += strangers if effects or completions else []
    if not died and (oom or crashed):
        closed = facts.all("nccl.service_closed")
        named = {e.fields["rank"] for e in closed if "rank" in e.fields}
        alone = len(named) == 1 and len({(e.host, e.pid) for e in closed}) > 1
        yield Finding(
            "peer-process-died", 0.75 if oom or alone else 0.6, "fatal",
            f"host memory ran out{' in its cgroup' if facts.all('kernel.oom_cgroup') else ''}: the kernel ends a process" if oom
            else "a process crashed" + (f"; {len(closed)} others name local rank {named.pop()}" if alone else ""),
            lines_of([*oom, *crashed, *(closed if alone else []), *effects[:4]]),
            "Find why it ended: host memory (dmesg, cgroup limit), a crash in its own log (PYTHONFAULTHANDLER=1, a core dump). What the other ranks report is the consequence.",
            ["dmesg -T | grep -i -e oom -e segfault", "the log of that rank before the first error of the others"],
        )  # fmt: skip
    elif died:
        yield Finding(
            "peer-process-died", 0.8, "fatal", "a process of the job was killed or crashed", lines_of([*died, *effects[:4]]),
            "Find why it ended: host memory (dmesg, cgroup limit), a crash in its own log. What the other ranks report is the consequence.",
            ["dmesg -T | grep -i -e oom -e segfault", "the log of that rank before the first error of the others"],
        )  # fmt: skip
    elif effects or completions:
        yield Finding(
            "peer-process-died", 0.5, "fatal", "a peer closed its connections: it ended or failed first", lines_of([*effects, *completions]),
            "Look for the first error in time on the other ranks; this one only saw the connection close.", ["the log of every rank, sorted by time, before this line"],
        )  # fmt: skip


RULES = (
    version_mismatch,
    networks_differ,
    settings_differ,
    set_on_some_hosts,
    collectives_differ,
    debugger_noise,
    rank_behind,
    timeout_without_witness,
    process_died,
)
