"""PopTorch options under poprun, and the connection of instances."""

from typing import Any, NoReturn

import poptorch
from popdist import _environment
from popdist._environment import Error
from poptorch import processes
from poptorch.options import _DistributedOptions

__all__ = ["Options"]


def _refused(setter: str) -> Any:
    """Return a setter that raises, because poprun decides the setting."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise, because poprun decides the setting."""
        raise Error(
            f"Cannot call `{setter}` with popdist.poptorch.Options: poprun decides it. A program "
            "that decides it by itself uses poptorch.Options."
        )

    refuse.__name__ = setter.rpartition(".")[2]
    return refuse


class _PopdistDistributedOptions(_DistributedOptions):
    """Read-only process count and index, as poprun assigned them."""

    def __init__(self) -> None:
        super().__init__()
        self._place(_environment.getInstanceIndex(), _environment.getNumInstances())

    disable = _refused("Distributed.disable")
    setEnvVarNames = _refused("Distributed.setEnvVarNames")
    configureProcessId = _refused("Distributed.configureProcessId")


class Options(poptorch.Options):
    """`poptorch.Options` with replicas, process count and process index as set by poprun.

    Without poprun: one process with one replica. Everything else is set as ever.

    Differs from the original: no device is picked, because there is no IPU to pick.

    Args:
        ipus_per_replica: How many IPUs a copy of the model has; poprun's number if None. Stored
            only: the model's blocks say what it really uses.

    Raises:
        AssertionError: `ipus_per_replica` is not an integer, or less than 1.
        popdist.Error: The environment is not one of poprun, or contradicts itself.
    """

    _distributed_kind = _PopdistDistributedOptions

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        _environment.check()
        super().__init__()
        if ipus_per_replica is None:
            ipus_per_replica = _environment.getNumIpusPerReplica()
        if isinstance(ipus_per_replica, bool) or not isinstance(ipus_per_replica, int):
            raise AssertionError(f"ipus_per_replica is a number of IPUs, not {ipus_per_replica!r}")
        if ipus_per_replica < 1:
            raise AssertionError(f"Invalid ipus_per_replica {ipus_per_replica}: it is 1 or more")
        self.createOrSet(ipus_per_replica=ipus_per_replica)

    useIpuId = _refused("useIpuId")
    replicationFactor = _refused("replicationFactor")

    def _apply_environment(self) -> None:
        # First, because settings of POPTORCH_DEFAULT_OPTIONS may build on it.
        self.set(replication_factor=_environment.getNumLocalReplicas())
        super()._apply_environment()


class InstanceError(poptorch.Error, Error):
    """An error of the communication between instances.

    Two bases, because it may come out of this package or out of a wrapper's call.
    """


def connect(index: int, count: int) -> None:
    """Connect this instance to all others; errors are raised as `popdist.Error`."""
    processes.raise_as(InstanceError)
    processes.join(index, count)
