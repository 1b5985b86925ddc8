"""The environment variables that tell an instance its part of the run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from popdist import _environment as names
from popdist._run.placement.plan import Instance, Plan
from popdist._run.problems import Problem

MPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
CACHE, DEFAULT_OPTIONS = "POPTORCH_CACHE_DIR", "POPTORCH_DEFAULT_OPTIONS"
_OFFLINE = {"useOfflineIpuTarget": []}
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def of_instance(plan: Plan, instance: Instance) -> dict[str, str]:
    """Return what popdist, poptorch and torch.distributed read in one instance.

    Args:
        plan: The run.
        instance: One of its instances.
    """
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
    """Return what options of poprun say to the program, the same in all instances.

    Args:
        options: Values by key.

    Raises:
        Problem: ``POPTORCH_DEFAULT_OPTIONS`` holds something that offline mode cannot be added to.
    """
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
