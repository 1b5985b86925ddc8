"""Instance and replica counts of a poprun launch, read from environment variables.

An instance is a process; a replica is a copy of the model inside of one. poprun describes replicas
in ``POPDIST_*``; Open MPI, which it starts instances with, numbers these in ``OMPI_COMM_WORLD_*``.
Every function reads the environment when it is called; it raises `popdist.Error` for a variable
that is missing or holds no number. Without poprun a program is the only
instance and has one replica; under plain ``mpirun``, or plain ``torchrun``, each of its processes
is an instance.
"""

import os


class Error(RuntimeError):
    """An invalid poprun environment or a failure of communication between instances.

    Differs from the original: a class of its own, so that programs can tell it from others.
    """


class CheckpointError(Error):
    """Raised if a checkpoint cannot be written, or training cannot resume from it."""


class CheckpointWarning(UserWarning):
    """Warning that a damaged checkpoint was skipped."""


TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
UNIFORM = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
LOCAL_INSTANCE = "POPDIST_LOCAL_INSTANCE_INDEX"
OF_POPRUN = (TOTAL, LOCAL, IPUS, OFFSET, UNIFORM, LOCAL_INSTANCE)
MPI_SIZE, MPI_RANK = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
MPI_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
SECRET = "ABELE_RUN_SECRET"  # instances with another one do not meet
TORCH_SIZE, TORCH_RANK, TORCH_LOCAL_RANK = "WORLD_SIZE", "RANK", "LOCAL_RANK"


def isPopdistEnvSet() -> bool:
    """Return whether poprun started this process, by its environment variables."""
    return any(name in os.environ for name in OF_POPRUN)


def getNumInstances() -> int:
    """Return the number of instances; 1 without poprun, mpirun or torchrun.

    Raises:
        popdist.Error: The environment does not tell it.
    """
    if MPI_SIZE in os.environ:
        return _read(MPI_SIZE, least=1)
    if not isPopdistEnvSet():
        return _read(TORCH_SIZE, least=1) if _by_torchrun() else 1
    total, local = getNumTotalReplicas(), getNumLocalReplicas()
    if not _is_uniform() or total % local:
        raise Error(
            f"The number of instances is not known: {MPI_SIZE} is not set, and {TOTAL}={total} "
            f"is not a multiple of {LOCAL}={local} on every instance. Set {MPI_SIZE}."
        )
    return total // local


def getInstanceIndex() -> int:
    """Return the global index of this instance; 0 without poprun.

    Raises:
        popdist.Error: The environment does not tell it, or it is not below the number of instances.
    """
    count = getNumInstances()
    if MPI_RANK in os.environ:
        index = _read(MPI_RANK)
    elif isPopdistEnvSet() and count > 1:
        index = getReplicaIndexOffset() // getNumLocalReplicas()
    elif _by_torchrun():
        index = _read(TORCH_RANK)
    else:
        index = 0
    if index >= count:
        names = f"{TORCH_RANK} and {TORCH_SIZE}"
        if not _by_torchrun():
            names = f"{MPI_RANK}, {MPI_SIZE} and {OFFSET}"
        raise Error(
            f"This process would be instance {index} of {count}, but instances count from 0. "
            f"Look at {names}."
        )
    return index


def getLocalInstanceIndex() -> int:
    """Return the index of this instance on its host; 0 without poprun."""
    if not isPopdistEnvSet():
        for name in (MPI_LOCAL_RANK, TORCH_LOCAL_RANK):
            if name in os.environ:
                return _read(name)
    return _of_poprun(LOCAL_INSTANCE, alone=0)


def getNumTotalReplicas() -> int:
    """Return the number of replicas in all instances; 1 without poprun."""
    return _read(TOTAL, least=1) if isPopdistEnvSet() else getNumInstances()


def getNumLocalReplicas() -> int:
    """Return the number of replicas of this instance; 1 without poprun."""
    return _of_poprun(LOCAL, alone=1, least=1)


def getReplicaIndexOffset() -> int:
    """Return the global index of this instance's first replica; 0 without poprun."""
    return _read(OFFSET) if isPopdistEnvSet() else getInstanceIndex()


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs per replica as passed to poprun; 1 without poprun."""
    return _of_poprun(IPUS, alone=1, least=1)


def checkNumIpusPerReplica(ipus_per_replica: int) -> bool:
    """Return whether replicas have the given number of IPUs.

    Args:
        ipus_per_replica: What the program's model needs.
    """
    return ipus_per_replica == getNumIpusPerReplica()


def getDeviceId(ipus_per_replica: int = 0) -> int:
    """Return the device index of this instance on its host.

    Differs from the original: instances share what there is, so this is the number of the instance
    on its host, whatever its replicas need.

    Args:
        ipus_per_replica: What a replica needs; 0 means as poprun was told.

    Raises:
        popdist.Error: A negative number, or the environment does not tell the instance.
    """
    if ipus_per_replica < 0:
        raise Error(f"getDeviceId takes a number of IPUs, or 0, not {ipus_per_replica}")
    return getLocalInstanceIndex()


def check() -> None:
    """Raise a `popdist.Error` if instance and replica counts contradict each other."""
    count, _ = getNumInstances(), getInstanceIndex()
    if not isPopdistEnvSet() or not _is_uniform():
        return
    total, local = getNumTotalReplicas(), getNumLocalReplicas()
    if total != count * local:
        raise Error(
            f"{TOTAL}={total}, but {count} instances with {LOCAL}={local} replicas each make "
            f"{count * local}. Start the program anew, or unset what an earlier run left."
        )


def _by_torchrun() -> bool:
    names = {TORCH_SIZE, TORCH_RANK}
    return not isPopdistEnvSet() and MPI_SIZE not in os.environ and names <= os.environ.keys()


def _is_uniform() -> bool:
    return os.environ.get(UNIFORM, "1") != "0"


def _of_poprun(name: str, *, alone: int, least: int = 0) -> int:
    return _read(name, least) if isPopdistEnvSet() else alone


def _read(name: str, least: int = 0) -> int:
    text = os.environ.get(name)
    if text is None:
        present = ", ".join(other for other in OF_POPRUN if other in os.environ)
        raise Error(
            f"{name} is not set, although {present} is. poprun sets all of them; unset them to run "
            "the program by itself."
        )
    if not text.strip().isdecimal() or int(text) < least:
        raise Error(f"{name}={text!r} should be an integer, {least} or more")
    return int(text)
