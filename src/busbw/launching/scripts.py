"""The shell scripts that start the ranks of one node, where nothing else does: over ssh, in containers, in pods."""

from __future__ import annotations

import shlex

from busbw.launching.job import Job, whole_seconds

__all__ = ["bounded", "exported", "node_argv", "rank_argv"]

_LAST_S = 5
"""Seconds between a rank's SIGTERM and its SIGKILL."""

_RANK = r"""rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-?}}
"$@"
status=$?
[ "$status" -eq 0 ] || echo "busbw: rank $rank on $(uname -n) ended with status $status" >&2
exit "$status"
"""

_NODE = r"""# Starts this node's ranks; when one fails, or standard input ends where it is watched, ends the others.
node=$1 per_node=$2 ranks=$3 limit=$4 watch=$5
shift 5
case $node in '' | *[!0-9]*) echo "busbw: no number of this node: '$node'" >&2; exit 2 ;; esac
first=$((node * per_node))
last=$((first + per_node))
[ "$last" -le "$ranks" ] || last=$ranks
export BUSBW_RANKS="$ranks" BUSBW_NODE="$node" BUSBW_NODES="$(((ranks + per_node - 1) / per_node))" BUSBW_LOCAL_RANKS="$((last - first))"
stop=$(mktemp -d "${TMPDIR:-/tmp}/busbw.XXXXXX") || exit 2
pids=
end() { : > "$stop/ended"; kill $pids 2> /dev/null; }
trap end TERM INT HUP USR1
main=$$
one() {
  BUSBW_RANK=$1 BUSBW_LOCAL_RANK=$(($1 - first)); export BUSBW_RANK BUSBW_LOCAL_RANK
  shift
  child= ending=
  trap 'ending=yes; [ -z "$child" ] || kill "$child" 2> /dev/null' TERM INT HUP
  trap : USR1
  timeout -k LAST "$limit" "$@" < /dev/null &
  child=$!
  [ -z "$ending" ] || kill "$child" 2> /dev/null
  wait "$child"; status=$?
  while [ "$status" -gt 128 ] && kill -0 "$child" 2> /dev/null; do wait "$child"; status=$?; done
  if [ "$status" -ne 0 ] && mkdir "$stop/first" 2> /dev/null && [ ! -e "$stop/ended" ]; then
    echo "busbw: rank $BUSBW_RANK on $(uname -n) ended with status $status" >&2
    kill -USR1 "$main" 2> /dev/null
  fi
  exit "$status"
}
exec 3<&0
rank=$first
while [ "$rank" -lt "$last" ]; do
  one "$rank" "$@" 3<&- &
  pids="$pids $!"
  rank=$((rank + 1))
done
if [ "$watch" = watch ]; then
  (cat <&3 > /dev/null; kill -TERM "$main") > /dev/null 2>&1 &
  watcher=$!
fi
exec 3<&-
result=0
for pid in $pids; do
  wait "$pid"; status=$?
  while [ "$status" -gt 128 ] && kill -0 "$pid" 2> /dev/null; do wait "$pid"; status=$?; done
  [ "$result" -ne 0 ] || result=$status
done
[ "$watch" != watch ] || kill "$watcher" 2> /dev/null
rm -rf "$stop"
exit "$result"
""".replace("LAST", str(_LAST_S))


def node_argv(job: Job, node: str, *, watch: bool = False) -> tuple[str, ...]:
    """The argv that starts all ranks of a node and ends with the status of the first that fails; needs a POSIX shell and timeout(1).

    node: its number, or a word that is replaced by one. watch: end the ranks when standard input ends. A rank that fails writes
    `busbw: rank 3 on n1 ended with status 7` on standard error; its time is bound by the job's limit.
    """
    limit = str(whole_seconds(job.time_limit_s))
    return (
        *("sh", "-c", _NODE, "busbw-node", node),
        *(str(job.ranks_per_node), str(job.ranks), limit, "watch" if watch else "-", *job.argv),
    )


def rank_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argv of one rank that says who it is when it fails, for launchers that do not."""
    return ("sh", "-c", _RANK, "busbw-rank", *argv)


def bounded(argv: tuple[str, ...], job: Job) -> tuple[str, ...]:
    """The argv of a rank that timeout(1) ends at the job's limit: schedulers count in minutes, and name no rank."""
    return ("timeout", "-k", str(_LAST_S), str(whole_seconds(job.time_limit_s)), *argv)


def exported(job: Job) -> str:
    """Lines of a shell script that set the job's environment."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(job.environment.items()))
