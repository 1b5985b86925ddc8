"""Instances placed by Slurm or MPI: poprun becomes the one it runs as and starts no others."""

from __future__ import annotations

import dataclasses
import os
import re
import zlib
from collections.abc import Mapping

from popdist import _environment as names
from popdist._run.placement.environment import MPI_LOCAL_SIZE
from popdist._run.placement.hosts import expand
from popdist._run.problems import Problem

_FIRST_PORT, _PORTS = 20000, 10000  # below those that systems hand out by themselves


@dataclasses.dataclass(frozen=True)
class Place:
    """A rank among those that something else started.

    Args:
        by: Who did.
        rank: Number of this process.
        size: How many there are.
        local_rank: Its number on its host.
        local_size: How many its host has.
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
        """A port that all ranks arrive at without talking to each other."""
        return _FIRST_PORT + zlib.crc32(self.job.encode(errors="surrogateescape")) % _PORTS


def find(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place of this process; None where nothing started it as one of several.

    Raises:
        Problem: The variables contradict each other.
    """
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
    hosts = expand(listed) if listed else ("127.0.0.1",)
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
    """Read 2(x3),1: three hosts with two tasks, then one with one."""
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
