"""`busbw launch`: what it shows, what it keeps, how it ends."""

from __future__ import annotations

import json

import pytest

SHELL = ("sh", "-c")


def test_a_dry_run_shows_all_and_runs_nothing(busbw, tmp_path):
    mark = tmp_path / "ran"
    shown = busbw("launch", "--launcher", "ssh", "--hosts", "a,b", "--dry-run", "--clean-env", "--", "touch", mark)
    assert shown.status == 0
    assert [line.split(" -- ")[1].split()[0] for line in shown.out.splitlines() if line.startswith("ssh ")] == [
        "a",
        "b",
    ]
    assert not mark.exists()
    told = json.loads(busbw("launch", "--ranks", 3, "--dry-run", "--json", "--", "touch", mark).out)
    assert [command["ranks"] for command in told["commands"]] == [[0, 1], [1, 2], [2, 3]]
    assert not mark.exists()


def test_scripts_are_written_where_the_command_looks_for_them(busbw, tmp_path):
    folder = tmp_path / "a folder"
    slurm = ("--launcher", "slurm", "--launcher-option", "mode=sbatch", "--name", "bench")
    shown = busbw("launch", *slurm, "--write", folder, "--dry-run", "--", "true")
    assert shown.out.splitlines()[-1].endswith(f"'{folder}/bench.sbatch'")
    assert (folder / "bench.sbatch").read_text().startswith("#!/bin/sh\n#SBATCH --job-name=bench\n")


def test_what_ranks_wrote_is_kept_with_how_they_ended(busbw, tmp_path):
    script = (
        'echo "row $BUSBW_RANK"; if [ "$BUSBW_RANK" = 1 ]; then sleep 0.3; echo lost >&2; exit 4; fi; exec sleep 30'
    )
    failed = busbw("launch", "--ranks", 2, "--output", tmp_path / "kept", "--", *SHELL, script)
    assert failed.status == 1
    assert failed.err.splitlines()[-1] == "busbw: rank 1 on localhost ended with status 4: lost"
    kept = json.loads((tmp_path / "kept" / "launch.json").read_text())
    assert (kept["complete"], kept["failure"]["rank"], kept["failure"]["last_words"]) == (False, 1, ["lost"])
    assert (tmp_path / "kept" / "rank-0.out").read_text() == "row 0\n"
    whole = busbw("launch", "--ranks", 2, "--output", tmp_path / "whole", "--label", "--", *SHELL, 'echo "$BUSBW_RANK"')
    assert (whole.status, sorted(whole.out.splitlines())) == (0, ["0: 0", "1: 1"])
    assert json.loads((tmp_path / "whole" / "launch.json").read_text())["complete"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "/no/such/program"], "/no/such/program can't be started: No such file or directory"),
        (["--launcher", "slrum", "--", "true"], "nearest: slurm"),
        (["--ranks", "0", "--", "true"], "--ranks 0: write 1 or more"),
        (["--nodes", "3", "--hosts", "a,b", "--", "true"], "--nodes 3: --hosts names 2"),
        (["--ranks", "5", "--nodes", "4", "--", "true"], "--ranks 5 with 2 on a node make 3 nodes, not 4"),
        (["--time-limit", "soon", "--", "true"], "--time-limit soon: write seconds"),
        (["--env", "BUSBW_NOT_SET", "--", "true"], "--env BUSBW_NOT_SET: it is not set here"),
        (["--mount", "a:b:c", "--", "true"], "--mount a:b:c: write FROM:TO"),
        (["--mount", "a:/b", "--", "true"], "absolute path"),
        (["--json", "--", "true"], "add --dry-run"),
        (["--launcher-option", "x=1", "--", "true"], "local has no x. It has no options"),
        (["--chdir", "/no/such/folder", "--", "true"], "can't be started in /no/such/folder: No such file"),
        ([], "COMMAND"),
    ],
)
def test_wrong_use_is_said_and_ends_with_status_2(busbw, words, said):
    ended = busbw("launch", *words)
    assert ended.status == 2
    assert said in ended.err
