"""The number of processes of a configuration, and their share of a minibatch.

`run.minibatch_size` means what it means in the published application and its ports:

    IPU             images of one replica; an update takes instances x replicas x minibatch_size
    CPU, GPU        images of all processes together, of which each takes its share
    synthetic data  images of each process
    inference       images of each process, which takes whole minibatches in turn
"""

import os

from cosmictagger import instances
from cosmictagger.config.data import DataKind
from cosmictagger.config.mode import ModeKind
from cosmictagger.config.root import Config
from cosmictagger.config.run import ComputeMode
from cosmictagger.errors import ConfigError

_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")


def settle_processes(config: Config) -> list[str]:
    """Check that this many processes can share the run; no process is waited for.

    Args:
        config: ``run.compute_mode`` is settled; ``run.num_replicas`` becomes what poprun was told.

    Returns:
        A sentence for each key that is set and has no effect.
    """
    count = instances.processes()
    _check_known(count)
    _check_mode(config, count)
    minibatch(config, count)
    notes = _settle_replicas(config)
    ipu = config.run.compute_mode is ComputeMode.IPU
    if config.run.distributed and (ipu or count == 1):
        why = "poprun decides in IPU mode" if ipu else "this is one process"
        notes.append(f"run.distributed=True has no effect: {why}.")
    return notes


def minibatch(config: Config, count: int) -> int:
    """Return images of one pass forward of one of ``count`` processes, of each of its replicas."""
    size = config.run.minibatch_size
    if config.mode.name is not ModeKind.train:
        return size  # whole batches in turn: the loss of a batch is not a mean over its images
    if config.run.compute_mode is ComputeMode.IPU or config.data.name is DataKind.synthetic:
        return size
    if size % count:
        raise ConfigError(
            f"run.minibatch_size={size} was asked for, which {count} processes cannot share: in "
            f"{config.run.compute_mode.name} mode it counts the images of all of them. Choose a "  # type: ignore[union-attr]
            f"multiple of {count}."
        )
    return size // count


def _check_known(count: int) -> None:
    for name in _WORLD_SIZES:
        if count == 1 and os.environ.get(name, "1") not in ("", "0", "1"):
            raise ConfigError(
                f"This is one of {os.environ[name]} processes ({name}), but nothing tells which "
                "one. Start them with poprun, torchrun, mpirun or srun, or start one process."
            )


def _check_mode(config: Config, count: int) -> None:
    mode = config.run.compute_mode
    assert mode is not None  # settled
    if mode is ComputeMode.RDU and (config.run.distributed or count > 1):
        reason = f"this is one of {count} processes" if count > 1 else "run.distributed=True"
        raise ConfigError(
            f"{reason[0].upper()}{reason[1:]}, but RDU mode runs in one process. Start one, "
            "without run.distributed, or choose run.compute_mode=CPU, GPU or IPU."
        )
    if count == 1:
        return
    if config.mode.name is ModeKind.iotest:
        raise ConfigError(
            f"This is one of {count} processes, but mode=iotest measures one. Start one process."
        )
    if mode is not ComputeMode.IPU and not config.run.distributed:
        raise ConfigError(
            f"This is one of {count} processes, which would train as many networks that know "
            "nothing of each other. Add run.distributed=True, so that they share one run, or "
            "start one process."
        )


def _settle_replicas(config: Config) -> list[str]:
    import popdist

    run = config.run
    if run.compute_mode is not ComputeMode.IPU:
        if run.num_replicas != 1:
            raise ConfigError(
                f"run.num_replicas={run.num_replicas} was asked for; only IPU mode has replicas. "
                f"In {run.compute_mode.name} mode start several processes with "  # type: ignore[union-attr]
                "run.distributed=True."
            )
        return []
    requested, run.num_replicas = run.num_replicas, popdist.getNumLocalReplicas()
    if not popdist.isPopdistEnvSet():
        run.num_replicas = requested
    elif requested not in (1, run.num_replicas):
        return [
            f"run.num_replicas={requested} has no effect: poprun gives each instance its replicas."
        ]
    return []
