"""Starting the instances of a plan, and reporting how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from popdist._run.command import checks
from popdist._run.command.settings import Settings
from popdist._run.instances import endings, shim, ssh
from popdist._run.instances.log import logger
from popdist._run.instances.output import Relay
from popdist._run.instances.screen import Screen
from popdist._run.placement import hosts
from popdist._run.placement.plan import Instance, Plan

_SHOWN = 10  # last lines of the instance that failed first
_PIPE_CLOSED = 128 + signal.SIGPIPE


def launch(plan: Plan, program: Sequence[str], settings: Settings) -> int:
    """Run all instances.

    Args:
        plan: Which runs where.
        program: What each of them starts.
        settings: The rest.

    Returns:
        The exit status: that of the instance that failed first, 0 if all succeeded.

    Raises:
        Problem: What `checks` find.
    """
    options = settings.options
    checks.check(plan, program, options["master_port"])
    address = checks.address(plan, options)
    logger.info("Running %s in %d instances", " ".join(program), len(plan.instances))
    # Late, because it takes seconds to load.
    from popdist._run.instances import agent

    agent.quiet()
    shim.become_subreaper()
    _allow_files(8 * len(plan.instances) + 256)
    run = _Run(plan, settings)
    signalled, codes = None, {}
    try:
        signalled, codes = agent.run(
            list(program),
            len(plan.instances),
            run.begin,
            address=address,
            port=options["master_port"],
            restarts=options["max_restarts"],
            grace=options["grace_seconds"],
        )
    finally:
        _ignore_signals()
        # What a shim could not end: it was killed, or a second Ctrl-C cut the time short.
        shim.end_descendants()
        run.finish()
    return run.conclude(signalled, codes)


class _Run:
    """Attempts of one run."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self._plan, self._settings = plan, settings
        options = settings.options
        self._screen = Screen(options["tag_output"], options["only_output_from_instance"], _stop)
        self._mark = f"\x1d{secrets.token_hex(8)}\x1d"
        self._relay: Relay | None = None

    def begin(self, attempt: int) -> list[tuple[dict[str, str], str, str]]:
        """Return environment, stdout and stderr of each instance for an attempt."""
        if self._relay:
            shim.end_descendants()
            self.finish()
            first = self._first()
            logger.warning(
                "%s; starting all %d instances anew (restart %d of %d)",
                self._description(first) if first else "An instance failed",
                len(self._plan.instances),
                attempt,
                self._settings.options["max_restarts"],
            )
        relay = self._relay = Relay(len(self._plan.instances), self._screen, self._mark)
        return [
            (
                {**self._settings.environments[i.rank], shim.ORDERS: json.dumps(self._orders(i))},
                relay.path(i.rank, 0),
                relay.path(i.rank, 1),
            )
            for i in self._plan.instances
        ]

    def finish(self) -> None:
        """Show all that instances have printed; again is harmless."""
        if self._relay:
            self._relay.finish()

    def conclude(self, signalled: int | None, codes: Mapping[int, int]) -> int:
        """Tell how the run ended; returns the exit status."""
        relay = self._relay
        if self._screen.broken:
            return _PIPE_CLOSED
        if signalled is not None:
            name = signal.Signals(signalled).name
            logger.warning("Ended by %s, and all instances with it", name)
            return 128 + signalled
        first = self._first()
        if codes and (first is None or first.kind == endings.SILENT):
            rank = first.rank if first else next(iter(codes))
            code = codes.get(rank, 1)
            first = endings.Ending(rank, shim.KILLED if code < 0 else shim.EXITED, abs(code), 0.0)
        if first is None or relay is None:
            logger.info("All instances ended with exit status 0")
            return 0
        lines = [line.decode(errors="replace") for _, line in relay.tails[first.rank]][-_SHOWN:]
        shown = [". Its last lines:", *(f"  {line}" for line in lines)] if lines else []
        others = " first" if len(self._plan.instances) > 1 else ""
        logger.error("%s%s%s", self._description(first), others, "\n".join(shown))
        return first.status

    def _first(self) -> endings.Ending | None:
        all_endings = self._relay.endings if self._relay else []
        return endings.first(all_endings, len(self._plan.instances), len(self._plan.hosts) == 1)

    def _description(self, ending: endings.Ending) -> str:
        instance = self._plan.instances[ending.rank]
        host = socket.gethostname() if hosts.is_here(instance.host) else instance.host
        return f"Instance {ending.rank} on {host} {endings.how(ending)}"

    def _orders(self, instance: Instance) -> dict[str, Any]:
        options, remote = self._settings.options, not hosts.is_here(instance.host)
        return {
            "parent": os.getpid(),
            "mark": self._mark,
            "ssh": ssh.command(instance.host) if remote else None,
            "forwarded": self._settings.forwarded[instance.rank] if remote else [],
            "folder": os.getcwd(),
            "grace": options["grace_seconds"],
            "stdin": instance.rank == 0,
            "bind": options["numa_aware"],
            "local_rank": instance.local_rank,
            "local_size": instance.local_size,
            "subnet": options["host_subnet"],
        }


def _allow_files(count: int) -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if now != unlimited and now < count:
        limit = count if most == unlimited else min(count, most)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def _stop() -> None:
    """End the run when nobody reads what it prints."""
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
