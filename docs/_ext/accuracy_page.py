"""Parts of docs/accuracy.md, made from docs/accuracy.json: errors by platform and size, every row, planted faults, sources."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.accuracy_page import SIZES, load_record

__all__ = [
    "accuracy_cross_check",
    "accuracy_faults",
    "accuracy_overall",
    "accuracy_platforms",
    "accuracy_rows",
    "accuracy_simulated",
    "accuracy_sources",
    "predicted_curve",
]

_MEANING = {
    "healthy": "nothing broken",
    "socket-fallback": "TCP sockets instead of RDMA",
    "gdr-peermem-missing": "no GPUDirect RDMA",
    "link-rate-degraded": "one NIC of a node",
    "pcie-link-degraded": "PCIe Gen3 x8",
    "env-p2p-level-forced": "copies through host memory",
    "nvlink-down": "half of the links between GPUs",
    "fabric-manager-state": "rings and trees instead of NVLS",
    "slow-node": "one rank 1.7 ms late",
}


def accuracy_overall() -> str:
    """One paragraph."""
    record = load_record()
    more = record["with_other_tools"]
    return f"nccl-tests and rccl-tests: {_overall(record['overall'])} With other tools, which do not measure as these do: {_overall(more)}"


def _overall(found: Mapping[str, Any]) -> str:
    by_size = ", ".join(f"{name} {found[name]:g} %" for name in SIZES[1:] if found[name] is not None)
    return (
        f"{found['tables']} tables, {found['rows']} rows, {found['refused']} more that could not be predicted; median over tables {found['all']:g} % "
        f"({by_size}); nine rows of ten err by less than {found['p90']:g} %; {found['covered']:.0%} of the rows lie in their 80 % interval."
    )


def accuracy_platforms() -> str:
    """A row a platform: ours, NCCL's own estimate, alpha-beta, each over all sizes and by size class."""
    lines = [
        "| platform | tables | rows | error in % | all | small | middle | large |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for platform in load_record()["platforms"]:
        for number, (who, said) in enumerate(
            (("ours", "busbw"), ("nccl", "NCCL's estimate"), ("alpha_beta", "alpha-beta"))
        ):
            found = platform[who]
            if number and found["all"] is None:
                continue
            head = [platform["name"], str(platform["tables"]), str(platform["rows"])] if not number else ["", "", ""]
            lines.append(_row([*head, said, *("-" if found[size] is None else f"{found[size]:g}" for size in SIZES)]))
    return "\n".join(lines)


def accuracy_rows() -> str:
    """Predicted over measured time of every row, against size, as inline SVG."""
    return f"```{{raw}} html\n{_drawn(load_record()['rows'])}\n```"


def accuracy_faults() -> str:
    """Planted faults, and what was said of healthy curves and tables."""
    found = load_record()["faults"]
    lines = ["| planted | named | another named | nothing named |", "|---|---|---|---|"]
    for kind, counts in sorted(found["planted"].items(), key=lambda each: each[0] != "healthy"):
        total = sum(counts.values())
        right = "-" if kind == "healthy" else _share(counts.get("right", 0), total)
        lines.append(
            _row(
                [
                    _MEANING.get(kind, kind),
                    right,
                    _share(counts.get("other", 0), total),
                    _share(counts.get("nothing", 0), total),
                ]
            )
        )
    alarms = len(found["alarms"])
    said = (
        f"{alarms} of them {'was' if alarms == 1 else 'were'} accused by a curve"
        if alarms
        else "none of them was accused"
    )
    return (
        f"{found['trials']} curves a fault, on each of {found['platforms']} platforms where it can be. {found['tables']} healthy measured tables, written "
        f"out as the output of nccl-tests with the NICs of a node: {said}. Of public tables measured over TCP on nodes with fast NICs "
        f"{sum(kind == 'socket-fallback' for kind in found['over_tcp'].values())} of {len(found['over_tcp'])} are named so first: "
        f"{', '.join(f'`{name}`' for name in found['over_tcp'])}.\n\n" + "\n".join(lines)
    )


def accuracy_simulated() -> str:
    """The simulator beside the closed form on the same rows, overall and a row a platform."""
    found = load_record()["simulated"]
    ours, closed = found["simulated"], found["closed"]
    lines = [
        f"{found['rows']} rows were simulated, {found['refused']} could not be. Median over tables: simulated {ours['all']:g} %, closed form "
        f"{closed['all']:g} % (small {ours['small']:g} and {closed['small']:g} %, middle {ours['middle']:g} and {closed['middle']:g} %, "
        f"large {ours['large']:g} and {closed['large']:g} %).",
        "",
        "| platform | rows | simulated, all | closed form, all | simulated, large | closed form, large |",
        "|---|---|---|---|---|---|",
    ]
    for platform in found["platforms"]:
        cells = [
            "-" if value is None else f"{value:g}"
            for size in ("all", "large")
            for value in (platform["simulated"][size], platform["closed"][size])
        ]
        lines.append(_row([platform["name"], str(platform["rows"]), *cells]))
    return "\n".join(lines)


def accuracy_cross_check() -> str:
    """How far simulated and closed-form times lie apart, by collective, algorithm and protocol."""
    lines = [
        "| collective | algorithm | protocol | least tenth | median | largest tenth |",
        "|---|---|---|---|---|---|",
    ]
    for row in load_record()["cross_check"]:
        cells = [f"{row[name]:+.1f} %" for name in ("low", "median", "high")]
        lines.append(_row([row["collective"].replace("_", "-"), row["algorithm"], row["protocol"], *cells]))
    return "\n".join(lines)


def accuracy_sources() -> str:
    """The tables by id."""
    return ", ".join(f"`{name}`" for name in load_record()["sources"])


def predicted_curve() -> str:
    """The figure of docs/predict.md, drawn by the model of this build."""
    from busbw.hardware import find_cluster  # noqa: PLC0415 - only where the page is built
    from busbw.prediction import predict  # noqa: PLC0415
    from busbw.reports import prediction_svg, standalone  # noqa: PLC0415

    result = predict(find_cluster("dgx-h100", 2)[0], "all_reduce", [8 << place for place in range(32)])
    return f"```{{raw}} html\n{standalone(prediction_svg(result, title='all-reduce, 2 x dgx-h100, 16 ranks'))}\n```"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "0"


def _drawn(rows: list[list[float]]) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415 - only where the page is built
    from matplotlib.ticker import FuncFormatter, NullFormatter  # noqa: PLC0415

    figure = Figure(figsize=(6.8, 3.6), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.axhspan(0.9, 1.1, color="#d3ebda", linewidth=0, label="within 10 %")
    axes.axhline(1.0, color="#59626c", linewidth=0.8)
    axes.plot([size for size, _ in rows], [ratio for _, ratio in rows], ".", color="#0b5cad", markersize=3, alpha=0.5)
    ticks = [2**power for power in range(3, 36, 5)]
    axes.set_xticks(ticks, [_size(tick) for tick in ticks])
    axes.set_yticks([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0.15, 6)
    axes.set(xlabel="size of the larger buffer of a rank", ylabel="predicted over measured time")
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Title": "Predicted over measured time of every row"})
    text = out.getvalue()
    return "\n".join(line for line in text[text.index("<svg") :].splitlines() if line.strip())


def _size(size: int) -> str:
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size >> power} {name}"
    return f"{size} B"
