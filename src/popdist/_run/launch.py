"""Starts the instances of a plan, and tells how they ended."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import os
import resource
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from popdist._run import hosts, shim, ssh
from popdist._run.log import logger
from popdist._run.output import Ending, Relay, Screen
from popdist._run.plan import Instance, Plan
from popdist._run.problems import NOT_FOUND, Problem

_SHOWN = 10  # last lines of the instance that failed first
_PIPE_CLOSED = 128 + signal.SIGPIPE


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a launch needs besides plan and program.

    Args:
        environments: Variables of each instance, by its number.
        forwarded: Names that instances on other hosts get too.
        options: Values of poprun's options, by key.
        verbosity: 0, 1 or 2.
    """

    environments: Sequence[Mapping[str, str]]
    forwarded: Sequence[str]
    options: Mapping[str, Any]
    verbosity: int


def check(plan: Plan, program: Sequence[str], port: int) -> None:
    """Look for what would keep instances from starting.

    Raises:
        Problem: No such program, a host that cannot be used, or a port that is taken.
    """
    if any(map(hosts.is_here, plan.hosts)):
        check_program(program)
    if port and not _is_free(port):
        raise Problem(
            f"--master-port {port} is taken by another process; choose another one, or leave the "
            "option out for a free one."
        )
    ssh.check([host for host in plan.hosts if not hosts.is_here(host)], program[0])


def check_program(program: Sequence[str]) -> None:
    """Look for a program on this machine.

    Raises:
        Problem: It is not there, or cannot be started.
    """
    name = program[0]
    if shutil.which(name):
        return
    if Path(name).is_file():
        first = "python3 " if name.endswith(".py") else "its interpreter and "
        raise Problem(f"{name} is no program by itself; start it as {first}{name}.", NOT_FOUND)
    raise Problem(f"There is no program {name}, neither at that path nor in PATH.", NOT_FOUND)


def launch(plan: Plan, program: Sequence[str], settings: Settings) -> int:
    """Run all instances.

    Args:
        plan: Which runs where.
        program: What each of them starts.
        settings: The rest.

    Returns:
        The exit status: that of the instance that failed first, 0 if all succeeded.

    Raises:
        Problem: See `check`; or no address of this machine is in ``--host-subnet``.
    """
    options = settings.options
    check(plan, program, options["master_port"])
    address = _address(plan, options)
    logger.info("Running %s in %d instances", " ".join(program), len(plan.instances))
    # Late, because it takes seconds to load.
    from popdist._run import agent

    agent.log_through(logger.handlers[0], settings.verbosity > 1)
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
        _kill_leftovers()
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
            _kill_leftovers()
            self.finish()
            first = self._first(self._relay.endings)
            logger.warning(
                "%s; starting all %d instances anew (restart %d of %d)",
                self._told(first) if first else "An instance failed",
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
        first = self._first(relay.endings) if relay else None
        if first is None and codes:
            rank, code = next(iter(codes.items()))
            kind = shim.KILLED if code < 0 else shim.EXITED
            first = Ending(rank, kind, abs(code), 0.0)
        if first is None or relay is None:
            logger.info("All instances ended with exit status 0")
            return 0
        lines = [line.decode(errors="replace") for _, line in relay.tails[first.rank]][-_SHOWN:]
        said = "\n".join([". Its last lines:", *(f"  {line}" for line in lines)]) if lines else ""
        others = " first" if len(self._plan.instances) > 1 else ""
        logger.error("%s%s%s", self._told(first), others, said)
        return first.status

    def _first(self, endings: Sequence[Ending]) -> Ending | None:
        failed = [ending for ending in endings if ending.failed]
        # Clocks of different hosts say little; the order of arrival then has to do.
        if len(self._plan.hosts) == 1:
            failed.sort(key=lambda ending: ending.seconds)
        return failed[0] if failed else None

    def _told(self, ending: Ending) -> str:
        instance = self._plan.instances[ending.rank]
        host = socket.gethostname() if hosts.is_here(instance.host) else instance.host
        return f"Instance {ending.rank} on {host} {how(ending)}"

    def _orders(self, instance: Instance) -> dict[str, Any]:
        options, remote = self._settings.options, not hosts.is_here(instance.host)
        return {
            "parent": os.getpid(),
            "mark": self._mark,
            "ssh": ssh.command(instance.host) if remote else None,
            "forwarded": list(self._settings.forwarded) if remote else [],
            "folder": os.getcwd(),
            "grace": options["grace_seconds"],
            "stdin": instance.rank == 0,
            "bind": options["numa_aware"],
            "local_rank": instance.local_rank,
            "local_size": instance.local_size,
            "subnet": options["host_subnet"],
        }


def how(ending: Ending) -> str:
    """Return how an instance ended, as the end of a sentence."""
    if ending.kind == shim.KILLED:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(ending.value).name} (signal {ending.value})"
        return f"was killed by signal {ending.value}"
    if ending.kind == shim.MISSING:
        return "could not be started"
    if ending.kind == shim.SSH:
        return f"lost its connection (ssh ended with status {ending.value})"
    return f"ended with exit status {ending.value}"


def _address(plan: Plan, options: Mapping[str, Any]) -> str:
    """Where instances find this process."""
    if options["master_addr"]:
        return options["master_addr"]
    others = [host for host in plan.hosts if not hosts.is_here(host)]
    if not others:
        return "127.0.0.1"
    if subnet := options["host_subnet"]:
        for address in shim.interfaces().values():
            if shim.within(address, subnet):
                return address
        raise Problem(
            f"No address of this machine is in --host-subnet {subnet}; choose a network that all "
            "hosts share."
        )
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((others[0].rpartition("@")[2], 9))  # sends nothing, but picks the address
        return asking.getsockname()[0]
    return socket.gethostname()


def check_subnet(text: str | None) -> None:
    """Check ``--host-subnet``.

    Raises:
        Problem: It is no network.
    """
    try:
        ipaddress.ip_network(text or "0.0.0.0/0", strict=False)
    except ValueError as error:
        raise Problem(
            f"--host-subnet takes a network such as 10.1.0.0/16, not {text!r}."
        ) from error


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def _allow_files(count: int) -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if now != unlimited and now < count:
        wanted = count if most == unlimited else min(count, most)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _stop() -> None:
    """Ends the run when nobody reads what it prints."""
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def _kill_leftovers() -> None:
    """Ends what a shim could not: it was killed itself, or a second Ctrl-C cut the grace short."""
    for process in shim.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
