"""Parts of docs/cases.md, made from docs/cases.json: counts a round, the reports one by one, the reliability plot."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from benchmarks.unseen import Answers, brier, load_records, stated, tally

from busbw.statistics import Bin, reliability

__all__ = ["case_reliability", "case_rounds", "cases"]


def case_rounds() -> str:
    """Answers per round, first and now."""
    records = load_records()
    first, now = tally(records, "first"), tally(records, "now")
    lines = [
        "| round | faulty reports | right at first | wrong at first | right now | healthy reports | false alarms at first | now |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rounds = [(str(n), first[n], now[n]) for n in first]
    for name, then, today in [*rounds, ("all", Answers(records, "first"), Answers(records, "now"))]:
        lines.append(
            f"| {name} | {then.faulty} | {_share(then.right, then.faulty)} | {then.wrong} | {_share(today.right, today.faulty)} "
            f"| {then.healthy} | {then.alarms} | {today.alarms} |"
        )
    return "\n".join(lines)


def cases() -> str:
    """Every report in the order met."""
    out = []
    records = load_records()
    for number in tally(records, "first"):
        out += [
            f"## Round {number}",
            "",
            "| source | cause | label | first answer | answer now |",
            "|---|---|---|---|---|",
        ]
        for record in records:
            if record["round"] == number:
                cells = [
                    record["source"],
                    record["kind"],
                    record["label"],
                    _answer(record, "first"),
                    _answer(record, "now"),
                ]
                out.append("| " + " | ".join(cells) + " |")
        out.append("")
    return "\n".join(out)


def case_reliability() -> str:
    """The reliability plot as inline SVG, with its figures in words."""
    records = load_records()
    confidences, right = stated(records)
    words = (
        f"{len(right)} first answers with a stated confidence, {sum(right)} of them right; Brier score {brier(records):.3f} "
        f"(0 is perfect, 0.25 is what always saying one half scores)."
    )
    drawn = _drawn(reliability(confidences, right))
    return f"{words}\n\n```{{raw}} html\n{drawn}\n```"


def _answer(record: Mapping[str, Any], when: str) -> str:
    answer = record[when]
    outcome = {True: "right", False: "wrong", None: "left open"}[answer["right"]]
    if not answer["answered"]:
        return "no alarm" if record["kind"] == "healthy" else "silent"
    sure = "" if answer["confidence"] is None else f" {answer['confidence']:.2f}"
    return f"{answer['kind'] or 'an accepted kind'}{sure}: {outcome}"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "0"


def _drawn(bins: list[Bin]) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415 - only where the page is built

    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=1, linestyle="--", label="perfectly calibrated")
    stated_at, shares = [b.stated for b in bins], [b.came_true for b in bins]
    spread = [[b.came_true - b.low for b in bins], [b.high - b.came_true for b in bins]]
    axes.errorbar(
        stated_at, shares, yerr=spread, fmt="o", color="#1f6f8b", capsize=3, label="first answers, 95 % interval"
    )
    for b in bins:
        axes.annotate(f"{b.count}", (b.stated, b.came_true), textcoords="offset points", xytext=(7, -11), fontsize=8)
    axes.set(xlim=(0, 1.03), ylim=(0, 1.05), xlabel="stated confidence", ylabel="share that was right")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    out = io.StringIO()
    figure.savefig(
        out, format="svg", metadata={"Date": None, "Title": "Stated confidence against the share that was right"}
    )
    text = out.getvalue()
    return "\n".join(line for line in text[text.index("<svg") :].splitlines() if line.strip())
