"""Runs instances under torch's elastic agent: start, monitoring, shutdown and restart.

All instances are workers of one agent, those of other hosts through their connection, so that one
place knows who failed first. The store that instances find each other in is held by poprun, at
the address that they get, on a port that is its own from before the first instance starts until the
last one ended.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import cast

from torch.distributed import DistNetworkError, HashStore, TCPStore
from torch.distributed.elastic.agent.server import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from abele.collectives.meeting import keep_store
from popdist._run.command_line import Problem
from popdist._run.output import logger
from popdist._run.ssh import SHIM

_RUN_ID = "poprun"
_HANDLED = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")

Begin = Callable[[int], list[tuple[dict[str, str], str, str]]]


class _Rendezvous(RendezvousHandler):
    """A rendezvous handler with a new store for each attempt, hosted in this process."""

    def __init__(self, address: str, port: int) -> None:
        self._address, self._port = address, port
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = None  # its port may be asked for again
        try:
            self._store = keep_store(self._address, self._port)
        except (OSError, DistNetworkError) as error:
            raise Problem(f"--master-port {self._port} cannot be listened on: {error}") from error
        info = RendezvousStoreInfo(self._address, self._store.port)
        # The agent's own notes stay here: it would keep the other store, and so its port, alive.
        return RendezvousInfo(HashStore(), rank=0, world_size=1, bootstrap_store_info=info)

    def get_backend(self) -> str:
        return "poprun"

    def get_run_id(self) -> str:
        return _RUN_ID

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        return None

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
        return True


class _Attempts(LogsSpecs):
    """Log settings of the agent that pass environment and pipes to instances at each attempt."""

    def __init__(self, begin: Begin) -> None:
        super().__init__()
        self._begin = begin

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        attempt = int(envs[0]["TORCHELASTIC_RESTART_COUNT"])
        outputs = self._begin(attempt)
        for rank, (environment, _, _) in enumerate(outputs):
            envs[rank].update(environment)
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(
            stdouts={rank: out for rank, (_, out, _) in enumerate(outputs)},
            stderrs={rank: err for rank, (_, _, err) in enumerate(outputs)},
            error_files=dict.fromkeys(range(len(outputs)), os.devnull),
        )

    @property
    def root_log_dir(self) -> str:
        return os.devnull


def run(
    program: list[str],
    count: int,
    begin: Begin,
    *,
    address: str,
    port: int,
    restarts: int,
    grace: int,
) -> tuple[int | None, dict[int, int]]:
    """Run all instances with restarts until they succeed or the restarts are used up.

    ``begin`` is called with the number of each attempt, from 0, when everything of the one before
    has ended; it returns environment, path for stdout and path for stderr of each instance. They
    meet at ``address``, on a free port if that is 0, and have ``grace`` seconds to end.

    Returns:
        The signal that ended the run, if one did, and exit codes of failed instances, negative for
        signals.
    """
    spec = WorkerSpec(
        role="instance",
        local_world_size=count,
        rdzv_handler=_Rendezvous(address, port),
        entrypoint=sys.executable,
        # The agent replaces ${local_rank}; arguments of the program are none of its business.
        args=("-I", "-S", SHIM, *(word.replace("$", "$$") for word in program)),
        max_restarts=restarts,
        monitor_interval=0.05,
    )
    handled = [name for name in _SIGNALS if not _is_ignored(name)]
    if len(handled) < len(_SIGNALS):
        os.environ.setdefault(_HANDLED, ",".join(handled))
    agent = LocalElasticAgent(spec, _Attempts(begin), shutdown_timeout=grace + 5)
    try:
        result = cast(RunResult, agent.run())
    except SignalException as stopped:
        return int(stopped.sigval), {}
    finally:
        spec.rdzv_handler.shutdown()
    return None, {rank: failure.exitcode for rank, failure in result.failures.items()}


def _is_ignored(name: str) -> bool:
    # nohup and shells' background jobs rely on it.
    return signal.getsignal(getattr(signal, name)) == signal.SIG_IGN


class _AsDetail(logging.Handler):
    """A log handler that forwards the agent's messages at level DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s", record.getMessage())


def quiet() -> None:
    """Route the log of torch's elastic agent to poprun's log at level DEBUG."""
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.handlers = [_AsDetail()]
    elastic.propagate = False
