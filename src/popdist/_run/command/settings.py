"""The variables of all instances: what options, arguments of mpirun and the plan say together."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from popdist._run.command import mpi_arguments
from popdist._run.instances import shim
from popdist._run.instances.log import logger
from popdist._run.placement import environment, hosts
from popdist._run.placement import plan as plans
from popdist._run.placement.adopt import Place

# Those that torch's agent sets, and one that the shim leaves alone where it is set.
_BY_OTHERS = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a launch needs besides plan and program.

    Args:
        environments: Variables of each instance, by its number.
        forwarded: Names of those variables that it also gets on another host.
        options: Values of poprun's options, by key.
    """

    environments: Sequence[Mapping[str, str]]
    forwarded: Sequence[Sequence[str]]
    options: Mapping[str, Any]


def of_run(plan: plans.Plan, options: Mapping[str, Any]) -> Settings:
    """Return the variables of all instances that poprun starts.

    Args:
        plan: Which instances there are.
        options: Values of poprun's options, by key.

    Raises:
        Problem: Arguments of mpirun that cannot be read.
    """
    count = len(plan.instances)
    for_all, single = _arguments(options, count)
    _warn([for_all, *single.values()])
    common = environment.of_program(options) | for_all.values
    common[environment.names.SECRET] = secrets.token_hex(16)
    per_instance, forwarded = [], []
    for instance in plan.instances:
        local = single.get(instance.rank, mpi_arguments.Variables())
        contract = environment.of_instance(plan, instance)
        per_instance.append({**common, **local.values, **contract})
        names = {*environment.FORWARDED, *for_all.names, *local.names, *per_instance[-1]}
        forwarded.append(sorted(names | set(_BY_OTHERS)))
    if any(map(hosts.is_here, plan.hosts)) and "OMP_NUM_THREADS" not in {**os.environ, **common}:
        cores, per_host = len(os.sched_getaffinity(0)), count // len(plan.hosts)
        share = shim.threads(cores, per_host)
        logger.info("%d instances share %d cores: OMP_NUM_THREADS=%d", per_host, cores, share)
    return Settings(per_instance, forwarded, options)


def of_place(place: Place, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of one instance in a place that something else gave.

    Args:
        place: Where this process is.
        options: Values of poprun's options, by key.

    Raises:
        Problem: Replicas that do not divide, or arguments of mpirun that cannot be read.
    """
    plan = plans.make(
        ("adopted",), place.size, options["num_replicas"], options["ipus_per_replica"]
    )
    for_all, single = _arguments(options, place.size)
    local = single.get(place.rank, mpi_arguments.Variables())
    contract = environment.of_instance(plan, plan.instances[place.rank]) | {
        environment.names.LOCAL_INSTANCE: str(place.local_rank),
        environment.names.MPI_LOCAL_RANK: str(place.local_rank),
        environment.MPI_LOCAL_SIZE: str(place.local_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }
    for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"):  # nobody counted the hosts
        del contract[name]
    return environment.of_program(options) | for_all.values | local.values | contract


def _arguments(
    options: Mapping[str, Any], count: int
) -> tuple[mpi_arguments.Variables, dict[int, mpi_arguments.Variables]]:
    variables = mpi_arguments.read(options["mpi_global_args"], "mpi-global-args")
    local = mpi_arguments.read(options["mpi_local_args"], "mpi-local-args")
    variables.values |= local.values
    variables.names += local.names
    variables.ignored += local.ignored
    return variables, mpi_arguments.read_of_instances(options["instance_mpi_local_args"], count)


def _warn(variables: Sequence[mpi_arguments.Variables]) -> None:
    ignored = dict.fromkeys(word for each in variables for word in each.ignored)
    if ignored:
        logger.warning("Arguments of mpirun without effect here: %s", "; ".join(ignored))
    unset = dict.fromkeys(n for each in variables for n in each.names if n not in os.environ)
    if unset:
        logger.warning("-x names variables that are not set here: %s", ", ".join(unset))
