"""PopDist API: detects a launch by poprun and returns the share of this instance.

Programs ask that once and go on either way. `init` connects the instances, after which wrappers
that train make their updates together. What goes wrong between instances is a `popdist.Error`.
Importing this package does not load torch; `popdist.poptorch` has the options of PopTorch programs.
"""

from popdist import _instances
from popdist._environment import (
    Error,
    checkNumIpusPerReplica,
    getDeviceId,
    getInstanceIndex,
    getLocalInstanceIndex,
    getNumInstances,
    getNumIpusPerReplica,
    getNumLocalReplicas,
    getNumTotalReplicas,
    getReplicaIndexOffset,
    isPopdistEnvSet,
)
from popdist._instances import execute_on_instances, init

__all__ = [
    "Error",
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]

_instances.install_horovod()
