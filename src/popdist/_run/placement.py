"""Placement of instances: hosts, replicas, environment, and ranks assigned by Slurm or MPI."""

import dataclasses
import json
import os
import re
import socket
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from popdist import _environment as names
from popdist._run.command_line import Problem

_RANGE = re.compile(r"(?P<head>[^\[\]]*)\[(?P<numbers>[\d,-]+)\](?P<tail>.*)")
_BETWEEN = re.compile(r",(?![^\[]*\])")  # commas outside of brackets
_DIGITS = re.compile(r"[0-9]{1,9}")
_NAME = re.compile(r"[A-Za-z0-9_.:@-]+")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand host lists: ``n[0-2,4]`` is n0, n1, n2 and n4; ``n[08-10]`` keeps zeros."""
    listed = (name for part in _BETWEEN.split(text) for name in _ranges(part.strip(), text))
    names = tuple(listed)
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise Problem(
            f"The host {twice[0]} is listed twice in {text!r}; list it once, and say with "
            "--num-instances how many instances there are."
        )
    return names


def read_hostfile(path: str) -> tuple[str, ...]:
    """Read a file with one host per line; ``#`` starts a comment, ``slots=N`` is ignored."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise Problem(f"--hostfile {path} cannot be read: {reason}.") from error
    words = [line.partition("#")[0].split() for line in lines]
    names = [fields[0] for fields in words if fields]
    if not names:
        raise Problem(f"--hostfile {path} lists no host; write one per line.")
    return expand_hosts(",".join(names))


def is_here(name: str) -> bool:
    """Return whether a host name is that of this machine."""
    hostname = socket.gethostname()
    if name in (*LOOPBACK, hostname):
        return True
    return hostname.startswith(f"{name}.") or name.startswith(f"{hostname}.")


def _no_range(piece: str, text: str) -> Problem:
    return Problem(
        f"{piece!r} in the list of hosts {text!r} is not a range such as 0-2, of "
        "numbers of up to nine digits."
    )


def _ranges(part: str, text: str) -> Iterator[str]:
    match = _RANGE.fullmatch(part)
    if not match:
        if not _NAME.fullmatch(part) or part.startswith("-"):
            raise Problem(
                f"{part!r} in the list of hosts {text!r} is not a host; write names "
                "with commas in between, such as a,b[0-2]."
            )
        yield part
        return
    for piece in match["numbers"].split(","):
        first, dash, last = piece.partition("-")
        if not _DIGITS.fullmatch(first) or (dash and not _DIGITS.fullmatch(last)):
            raise _no_range(piece, text)
        if int(last or first) < int(first):
            raise _no_range(piece, text)
        for number in range(int(first), int(last or first) + 1):
            yield from _ranges(f"{match['head']}{number:0{len(first)}}{match['tail']}", text)


@dataclasses.dataclass(frozen=True)
class Instance:
    """A process of a poprun launch: rank, host, local rank, IPU-link domain, and replicas."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    domain: int
    offset: int
    replicas: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The placement of all instances on hosts and devices."""

    instances: tuple[Instance, ...]
    replicas: int
    ipus: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in instance order."""
        return tuple(dict.fromkeys(instance.host for instance in self.instances))


def make_plan(
    hosts: Sequence[str], instances: int, replicas: int | None, ipus: int = 1, domains: int = 1
) -> Plan:
    """Distribute instances evenly over hosts and domains, and replicas over instances."""
    replicas = instances if replicas is None else replicas
    if replicas % instances:
        below, above = replicas // instances * instances, (replicas // instances + 1) * instances
        near = f"{below} or {above}" if below else f"{above}"
        raise Problem(
            f"--num-replicas {replicas} does not divide into --num-instances {instances}: every "
            f"instance has the same number of replicas. Use {near} replicas, or other instances."
        )
    if instances % len(hosts):
        raise Problem(
            f"--num-instances {instances} does not divide over {len(hosts)} hosts: every host "
            f"has the same number of instances. Use a multiple of {len(hosts)}, or other hosts."
        )
    if domains > instances or instances % domains:
        raise Problem(
            f"--num-ilds {domains} does not divide --num-instances {instances}: every domain has "
            "the same number of instances."
        )
    per_host, share = instances // len(hosts), replicas // instances
    placed = [
        Instance(
            rank=rank,
            host=hosts[rank // per_host],
            local_rank=rank % per_host,
            local_size=per_host,
            domain=rank * domains // instances,
            offset=rank * share,
            replicas=share,
        )
        for rank in range(instances)
    ]
    return Plan(tuple(placed), replicas, ipus)


MPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
CACHE, DEFAULT_OPTIONS = "POPTORCH_CACHE_DIR", "POPTORCH_DEFAULT_OPTIONS"
_OFFLINE = {"useOfflineIpuTarget": []}
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def of_instance(plan: Plan, instance: Instance) -> dict[str, str]:
    """Return the variables of an instance for popdist, poptorch and torch.distributed."""
    size, hosts = len(plan.instances), plan.hosts
    variables = {
        names.TOTAL: plan.replicas,
        names.IPUS: plan.ipus,
        names.LOCAL: instance.replicas,
        names.UNIFORM: 1,
        names.OFFSET: instance.offset,
        names.LOCAL_INSTANCE: instance.local_rank,
        names.MPI_SIZE: size,
        names.MPI_RANK: instance.rank,
        names.MPI_LOCAL_RANK: instance.local_rank,
        MPI_LOCAL_SIZE: instance.local_size,
        "WORLD_SIZE": size,
        "RANK": instance.rank,
        "LOCAL_WORLD_SIZE": instance.local_size,
        "LOCAL_RANK": instance.local_rank,
        "GROUP_WORLD_SIZE": len(hosts),
        "GROUP_RANK": hosts.index(instance.host),
    }
    return {name: str(value) for name, value in variables.items()}


def of_program(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that poprun's options set in all instances."""
    variables = {}
    if folder := options["executable_cache_path"]:
        variables[CACHE] = str(Path(folder).absolute())
    if options["offline_mode"]:
        variables[DEFAULT_OPTIONS] = _with_offline(os.environ.get(DEFAULT_OPTIONS) or "{}")
    return variables


def _with_offline(text: str) -> str:
    try:
        return json.dumps({**json.loads(text), **_OFFLINE})
    except (ValueError, TypeError) as error:
        raise Problem(
            f"--offline-mode adds to {DEFAULT_OPTIONS}, but that is not a JSON object: {text!r}."
        ) from error


_FIRST_PORT, _PORTS = 20000, 10000  # below those that systems hand out by themselves


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank in an existing MPI or Slurm job.

    Attributes:
        address: Host of rank 0; None where it is not told.
        job: Something that is the same for all ranks of a job, and differs between jobs.
    """

    by: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str | None
    job: str

    @property
    def port(self) -> int:
        """A port derived from the job id, so that all ranks agree on it."""
        return _FIRST_PORT + zlib.crc32(self.job.encode(errors="surrogateescape")) % _PORTS


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return the Slurm or MPI rank of this process; None under poprun or if alone."""
    if any(name in environment for name in names.OF_POPRUN):
        return None
    place = _of_slurm(environment) or _of_mpi(environment)
    if place is None or place.size == 1:
        return None
    if place.rank >= place.size:
        raise Problem(f"{place.by} says that this is rank {place.rank} of {place.size}.")
    return place


def _of_slurm(environment: Mapping[str, str]) -> Place | None:
    # In a batch script these are set as well, but no step has started processes yet.
    step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID"))
    size = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS"))
    if "SLURM_PROCID" not in environment or step is None or size is None:
        return None
    listed = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    hosts = expand_hosts(listed) if listed else ("127.0.0.1",)
    return Place(
        "Slurm",
        int(environment["SLURM_PROCID"]),
        int(size),
        int(environment.get("SLURM_LOCALID", "0")),
        _tasks_here(environment, int(size), len(hosts)),
        hosts[0] if len(hosts) > 1 else "127.0.0.1",  # where nobody else reaches the store
        f"slurm {environment.get('SLURM_JOB_ID', '')} {step}",
    )


def _tasks_here(environment: Mapping[str, str], size: int, hosts: int) -> int:
    """Parse Slurm's task counts: ``2(x3),1`` is three hosts with two tasks, then one with one."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE"))
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text or ""):
        counts += [int(count)] * int(times or 1)
    node = int(environment.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else max(1, size // hosts)


def _of_mpi(environment: Mapping[str, str]) -> Place | None:
    for rank, size, local_rank, local_size in (
        (names.MPI_RANK, names.MPI_SIZE, names.MPI_LOCAL_RANK, MPI_LOCAL_SIZE),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        if rank in environment and size in environment:
            count = int(environment[size])
            local_count = int(environment.get(local_size, count))
            return Place(
                "MPI",
                int(environment[rank]),
                count,
                int(environment.get(local_rank, environment[rank])),
                local_count,
                "127.0.0.1" if local_count == count else None,
                next((environment[n] for n in _JOBS if n in environment), "mpi"),
            )
    return None


_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID")
