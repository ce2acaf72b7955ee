"""T9: wrong uses of `busbw simulate training` and `busbw search training`, each answered by one message that says what, where and what would do."""

from __future__ import annotations

import contextlib
import io

from benchmarks.rows import Measured, Options
from busbw.cli.app import main

__all__ = ["WRONG", "wrong_inputs"]

_BASE = {"--model": "llama3-70b", "--cluster": "dgx-h100", "--nodes": "8", "--seq-len": "8192", "--global-batch": "128"}
_MOE = {"--model": "qwen3-30b-a3b"}

WRONG: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    # options beside _BASE, and what the message must say
    ({"--layout": "tp3"}, ("3 GPUs of tp, cp and pp do not divide 64",)),
    ({"--layout": "tp16.pp4.dp2"}, ("= 128 GPUs, the cluster has 64", "Nearest legal layout: tp")),
    ({"--layout": "tp4.pp4.dp8"}, ("= 128 GPUs", "Nearest legal layout: tp4.pp4.dp4")),
    ({"--layout": "tp64", "--model": "llama3-8b"}, ("tp 64 does not divide 32 heads", "Nearest legal layout")),
    ({"--layout": "tp4.ep8"}, ("has no experts", "Nearest legal layout: tp4.pp1.dp16")),
    ({"--layout": "ep3", **_MOE}, ("ep 3 does not divide 128 experts", "Nearest legal layout")),
    ({"--layout": "pp16.ep64", **_MOE}, ("ep 64 does not divide the 4 GPUs of a stage", "Nearest legal layout")),
    ({"--layout": "ep8.etp3", **_MOE}, ("etp 3", "Nearest legal layout")),
    ({"--layout": "pp64.vpp2", "--global-batch": "64"}, ("128 stages for 80 layers", "Nearest legal layout")),
    ({"--layout": "vpp4"}, ("vpp 4 without a pipeline", "Nearest legal layout")),
    ({"--layout": "tp8.pp4.vpp2", "--global-batch": "6"}, ("multiples of pp 4", "Nearest legal layout")),
    ({"--layout": "tp8.pp4.interleaved"}, ("needs virtual stages", "Nearest legal layout")),
    ({"--layout": "tp8.pp8.dualpipe.vpp2"}, ("dualpipe has no virtual stages",)),
    ({"--layout": "tp8.pp4.zero2"}, ("zero2",)),
    ({"--layout": "tp8", "--global-batch": "12"}, ("12 is no multiple of micro-batch 1 x dp 8", "Nearest global batch: 16")),
    ({"--layout": "tp8", "--micro-batch": "3"}, ("no multiple of micro-batch 3", "Nearest")),
    ({"--layout": "cp16", "--seq-len": "1000"}, ("2 x 16 pieces", "Nearest legal layout")),
    ({"--layout": "tp8", "--seq-len": "8191"}, ("sequence parallel splits 8191", "nosp")),
    ({"--layout": "tp8.cp4.ulysses"}, ("Ulysses", "Nearest legal layout")),
    ({"--layout": "hsdp5"}, ("shards of 5", "Take one of")),
    ({"--layout": "tp8.xp2"}, ("'xp2' is no part of a layout",)),
    ({"--layout": "tp8.tp4"}, ("tp is given twice",)),
    ({"--layout": "tp8", "--model": "llama-3-70b"}, ("is not known", "Did you mean", "llama3-70b")),
    ({"--layout": "tp8", "--model": "glm-5"}, ("cannot be modelled yet",)),
    ({"--layout": "tp8", "--model": "nowhere.yaml"}, ("nowhere.yaml", "cannot be read")),
    ({"--layout": "tp8", "--precision": "fp7"}, ("precision 'fp7' is not known", "fp8")),
    ({"--layout": "tp8", "--recompute": "some"}, ("--recompute 'some'", "selective")),
    ({"--layout": "tp8", "--software": "megatron-bridge-99"}, ("is no release of the calibration", "Did you mean")),
    ({"--layout": "tp8", "--overlap": "xp"}, ("overlap 'xp' is not known",)),
    ({"--layout": "tp8", "--cluster": "dgx-h10"}, ("dgx-h100",)),
)  # fmt: skip


def answer(options: dict[str, str], verb: tuple[str, ...] = ("simulate", "training")) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the command."""
    arguments = [*verb, *(word for pair in {**_BASE, **options}.items() for word in pair)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stop:
            return int(stop.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def wrong_inputs(_: Options) -> Measured:
    """T9."""
    good, missed = 0, []
    for options, said in WRONG:
        status, out, err = answer(options)
        text = " ".join(err.split())
        if status == 2 and not out and all(one in text for one in said) and err.count("busbw: ") == 1:
            good += 1
        else:
            missed.append(f"{options}: {status} {text[:160]}")
    return Measured(
        good / len(WRONG), note=f"{good} of {len(WRONG)}" + (f"; not: {'; '.join(missed)}" if missed else "")
    )
