"""Launches the instances of a plan: environment, checks before the start, and exit status."""

import contextlib
import dataclasses
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from abele import systems
from popdist._run import command_line, output, placement, shim, ssh
from popdist._run.command_line import NOT_FOUND, Problem
from popdist._run.output import Relay, Screen, logger
from popdist._run.placement import Instance, Place, Plan

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
    """The environment of each instance, the names forwarded to other hosts, and poprun options."""

    environments: Sequence[Mapping[str, str]]
    forwarded: Sequence[Sequence[str]]
    options: Mapping[str, Any]


def settings_of_run(plan: Plan, options: Mapping[str, Any]) -> Settings:
    """Return the environment variables of all instances that poprun starts."""
    count = len(plan.instances)
    for_all, single = _arguments(options, count)
    _warn([for_all, *single.values()])
    common = placement.of_program(options) | for_all.values
    common[placement.names.SECRET] = secrets.token_hex(16)
    per_instance, forwarded = [], []
    for instance in plan.instances:
        local = single.get(instance.rank, command_line.Variables())
        contract = placement.of_instance(plan, instance)
        per_instance.append({**common, **local.values, **contract})
        names = {*placement.FORWARDED, *for_all.names, *local.names, *per_instance[-1]}
        forwarded.append(sorted(names | set(_BY_OTHERS)))
    if any(map(placement.is_here, plan.hosts)) and "OMP_NUM_THREADS" not in {
        **os.environ,
        **common,
    }:
        cores, per_host = len(os.sched_getaffinity(0)), count // len(plan.hosts)
        share = shim.threads(cores, per_host)
        logger.info("%d instances share %d cores: OMP_NUM_THREADS=%d", per_host, cores, share)
    return Settings(per_instance, forwarded, options)


def variables_of_place(place: Place, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of one instance of an MPI or Slurm job."""
    plan = placement.make_plan(
        ("adopted",), place.size, options["num_replicas"], options["ipus_per_replica"]
    )
    for_all, single = _arguments(options, place.size)
    local = single.get(place.rank, command_line.Variables())
    contract = placement.of_instance(plan, plan.instances[place.rank]) | {
        placement.names.LOCAL_INSTANCE: str(place.local_rank),
        placement.names.MPI_LOCAL_RANK: str(place.local_rank),
        placement.MPI_LOCAL_SIZE: str(place.local_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }
    for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"):  # nobody counted the hosts
        del contract[name]
    return placement.of_program(options) | for_all.values | local.values | contract


def _arguments(
    options: Mapping[str, Any], count: int
) -> tuple[command_line.Variables, dict[int, command_line.Variables]]:
    variables = command_line.read_mpi_arguments(options["mpi_global_args"], "mpi-global-args")
    local = command_line.read_mpi_arguments(options["mpi_local_args"], "mpi-local-args")
    variables.values |= local.values
    variables.names += local.names
    variables.ignored += local.ignored
    return variables, command_line.read_instance_arguments(
        options["instance_mpi_local_args"], count
    )


def _warn(variables: Sequence[command_line.Variables]) -> None:
    ignored = dict.fromkeys(word for each in variables for word in each.ignored)
    if ignored:
        logger.warning("Arguments of mpirun without effect here: %s", "; ".join(ignored))
    unset = dict.fromkeys(n for each in variables for n in each.names if n not in os.environ)
    if unset:
        logger.warning("-x names variables that are not set here: %s", ", ".join(unset))


def check_program(program: Sequence[str]) -> None:
    """Raise unless a program exists and is executable on this machine."""
    name = program[0]
    if shutil.which(name):
        return
    if Path(name).is_file():
        first = "python3 " if name.endswith(".py") else "its interpreter and "
        raise Problem(f"{name} cannot be started as a program; use {first}{name}.", NOT_FOUND)
    raise Problem(
        f"There is no program {name}, neither at that path nor in PATH. The first word after the "
        "options of poprun is the program.",
        NOT_FOUND,
    )


def meeting_address(plan: Plan, options: Mapping[str, Any]) -> str:
    """Return the address at which instances connect to this process."""
    if options["master_addr"]:
        return options["master_addr"]
    others = [host for host in plan.hosts if not placement.is_here(host)]
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
    """Raise if the value of ``--host-subnet`` is invalid."""
    try:
        ipaddress.ip_network(text or "0.0.0.0/0", strict=False)
    except ValueError as error:
        raise Problem(
            f"--host-subnet takes a network such as 10.1.0.0/16, not {text!r}."
        ) from error


_SHOWN = 10  # last lines of the instance that failed first
_PIPE_CLOSED = systems.PIPE_CLOSED


def launch(plan: Plan, program: Sequence[str], settings: Settings) -> int:
    """Run all instances; return the exit status, that of the instance that failed first."""
    options = settings.options
    if any(map(placement.is_here, plan.hosts)):
        check_program(program)
    address = meeting_address(plan, options)
    logger.info("Running %s in %d instances", " ".join(program), len(plan.instances))
    # Late, because it takes seconds to load.
    from popdist._run import agent

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
    """A run of all instances, with its restarts."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self._plan, self._settings = plan, settings
        options = settings.options
        tags, only = options["tag_output"], options["only_output_from_instance"]
        # Once its output is closed, poprun ends.
        self._screen = Screen(tags, only, lambda: os.kill(os.getpid(), signal.SIGTERM))
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
        """Print all remaining output of the instances; idempotent."""
        if self._relay:
            self._relay.finish()

    def conclude(self, signalled: int | None, codes: Mapping[int, int]) -> int:
        """Log how the run ended; return the exit status."""
        relay = self._relay
        if self._screen.broken:
            return _PIPE_CLOSED
        if signalled is not None:
            name = signal.Signals(signalled).name
            logger.warning("Ended by %s, and all instances with it", name)
            return 128 + signalled
        first = self._first()
        if codes and (first is None or first.kind == output.SILENT):
            rank = first.rank if first else next(iter(codes))
            code = codes.get(rank, 1)
            first = output.Ending(rank, shim.KILLED if code < 0 else shim.EXITED, abs(code), 0.0)
        if first is None or relay is None:
            logger.info("All instances ended with exit status 0")
            return 0
        lines = [line.decode(errors="replace") for _, line in relay.tails[first.rank]][-_SHOWN:]
        shown = [". Its last lines:", *(f"  {line}" for line in lines)] if lines else []
        others = " first" if len(self._plan.instances) > 1 else ""
        logger.error("%s%s%s", self._description(first), others, "\n".join(shown))
        return first.status

    def _first(self) -> output.Ending | None:
        all_endings = self._relay.endings if self._relay else []
        return output.first_failure(
            all_endings, len(self._plan.instances), len(self._plan.hosts) == 1
        )

    def _description(self, ending: output.Ending) -> str:
        instance = self._plan.instances[ending.rank]
        host = socket.gethostname() if placement.is_here(instance.host) else instance.host
        return f"Instance {ending.rank} on {host} {output.describe_ending(ending)}"

    def _orders(self, instance: Instance) -> dict[str, Any]:
        options, remote = self._settings.options, not placement.is_here(instance.host)
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
    import resource  # which Windows lacks, where --help works

    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if now != unlimited and now < count:
        limit = count if most == unlimited else min(count, most)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
