"""Which instance runs where, and how many replicas it has."""

import dataclasses
from collections.abc import Sequence

from popdist._run.problems import MOST, Problem


@dataclasses.dataclass(frozen=True)
class Instance:
    """One process of the run.

    Args:
        rank: Its number among all instances.
        host: Name of its host, as the user wrote it.
        local_rank: Its number among those of its host.
        local_size: How many its host has.
        domain: Its IPU-link domain; shown in the topology only.
        offset: Number of its first replica.
        replicas: How many it has.
    """

    rank: int
    host: str
    local_rank: int
    local_size: int
    domain: int
    offset: int
    replicas: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """All instances.

    Args:
        instances: In the order of their numbers.
        replicas: Of all instances together.
        ipus: Of one replica.
    """

    instances: tuple[Instance, ...]
    replicas: int
    ipus: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in the order of their instances."""
        return tuple(dict.fromkeys(instance.host for instance in self.instances))


def make(
    hosts: Sequence[str], instances: int, replicas: int | None, ipus: int = 1, domains: int = 1
) -> Plan:
    """Divide instances over hosts, and replicas over instances.

    Args:
        hosts: Names; each gets the same number of instances, in order.
        instances: How many.
        replicas: How many in all; None for one per instance.
        ipus: Of one replica.
        domains: Number of IPU-link domains.

    Raises:
        Problem: Something does not divide evenly, or is too many.
    """
    replicas = instances if replicas is None else replicas
    for name, count in (("num-instances", instances), ("num-replicas", replicas)):
        if count > MOST:
            raise Problem(f"--{name} {count} is more than poprun starts: at most {MOST}.")
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
