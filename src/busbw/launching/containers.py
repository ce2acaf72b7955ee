"""Command lines of Docker and Apptainer: images with GPUs, InfiniBand and memory as ranks need them."""

from __future__ import annotations

from dataclasses import dataclass

from busbw.errors import InputError
from busbw.launching.job import MARGIN_S, Command, Job, Launch
from busbw.launching.scripts import node_argv

__all__ = ["ApptainerOptions", "DockerOptions", "contained", "render_apptainer", "render_docker"]


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """How containers are started."""

    program: str = "docker"
    """docker, podman or a path."""
    shm: str = "16g"
    """Size of /dev/shm: NCCL's and gloo's buffers between ranks of a node lie there, and Docker gives 64 MiB."""
    gpus: str = "auto"
    """all, none, or ids such as 0,1; auto: all if the job has GPUs."""
    rdma: bool = False
    """Whether to hand /dev/infiniband in."""
    arguments: tuple[str, ...] = ()
    """Further words for docker run."""


@dataclass(frozen=True, slots=True)
class ApptainerOptions:
    """How images are run."""

    program: str = "apptainer"
    """apptainer, singularity or a path."""
    nv: str = "auto"
    """yes, no: whether to bind NVIDIA's driver; auto: if the job has GPUs."""
    arguments: tuple[str, ...] = ()
    """Further words for apptainer exec."""


def render_docker(job: Job, options: DockerOptions) -> Launch:
    """One container a node, with all of its ranks in it; other hosts' engines are reached over ssh (docker -H ssh://host).

    Pinned memory needs --ulimit memlock=-1 and IPC_LOCK; NCCL between ranks of a node needs /dev/shm and one IPC namespace, which ranks of one
    container share. The host's network is used: RDMA addresses belong to it.
    """
    image = job.needs_image("docker")
    if job.nodes > 1 and not job.hosts:
        raise InputError(f"docker on {job.nodes} nodes: name them with --hosts.")
    commands = []
    for node in range(job.nodes):
        host = job.hosts[node] if job.hosts else None
        argv = [options.program, *(["-H", f"ssh://{host}"] if host not in (None, "localhost") else [])]
        argv += ["run", "--rm", "--init", "--name", f"{job.name}-{node}", "--network=host", f"--shm-size={options.shm}"]
        argv += ["--ulimit=memlock=-1", "--ulimit=stack=67108864", "--cap-add=IPC_LOCK"]
        gpus = ("all" if job.gpus_per_rank else "none") if options.gpus == "auto" else options.gpus
        if gpus != "none":
            argv += ["--gpus", gpus if gpus == "all" else f'"device={gpus}"']  # a value with commas, as CSV
        if options.rdma:
            argv.append("--device=/dev/infiniband")
        for mount in job.mounts:
            argv += ["--volume", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"]
        if job.working_directory:
            argv += ["--workdir", job.working_directory]
        for name in sorted(job.environment):  # the client takes the value from its own environment
            argv += ["--env", name]
        argv += [*options.arguments, image, *node_argv(job, str(node))]
        commands.append(Command(tuple(argv), job.ranks_of(node), dict(job.environment), host))
    return Launch("docker", tuple(commands), slack_s=MARGIN_S)


def render_apptainer(job: Job, options: ApptainerOptions) -> Launch:
    """Ranks on this machine, all in one instance of the image. On many nodes use another launcher with --image: it starts Apptainer a rank."""
    if job.nodes > 1 or job.hosts:
        raise InputError(
            "apptainer runs on this machine; with --launcher slurm, mpirun, ssh or torchrun an --image is run by Apptainer on every node."
        )
    argv = (*_exec(job, options), *node_argv(job, "0"))
    return Launch(
        "apptainer", (Command(argv, range(job.ranks), dict(job.environment), working_directory=job.working_directory),)
    )


def contained(job: Job) -> tuple[str, ...]:
    """The job's argv, inside its image if it has one: Apptainer, since it runs as the user and passes the launcher's environment and sockets on."""
    return (*_exec(job, ApptainerOptions()), *job.argv) if job.image else job.argv


def _exec(job: Job, options: ApptainerOptions) -> tuple[str, ...]:
    image = job.needs_image("apptainer")
    nv = options.nv == "yes" or (options.nv == "auto" and job.gpus_per_rank > 0)
    binds = [
        word
        for mount in job.mounts
        for word in ("--bind", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}")
    ]
    # /dev and the host's network and IPC are shared unless asked otherwise, so shared memory and /dev/infiniband are there.
    return (options.program, "exec", *(["--nv"] if nv else []), *binds, *options.arguments, image)
