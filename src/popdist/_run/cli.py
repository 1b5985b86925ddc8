"""Entry point of the command ``poprun``."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NoReturn

from abele import systems
from popdist._run import command_line, launch, placement, shim
from popdist._run.command_line import NO_EFFECT, OPTIONS, Problem
from popdist._run.output import logger, set_up_log
from popdist._run.placement import Place, Plan

_TITLE = "poprun topology"
_COLUMNS = ("hosts", "ILDs", "instances", "replicas")


def topology_table(plan: Plan) -> str:
    """Format the domains, instances and replicas of each host as a table."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for host, group in groupby(plan.instances, lambda instance: instance.host):
        instances = list(group)
        last = instances[-1]
        rows.append((
            host,
            _range(range(instances[0].domain, last.domain + 1)),
            _range(range(instances[0].rank, last.rank + 1)),
            _range(range(instances[0].offset, last.offset + last.replicas)),
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([_TITLE, "=" * len(lines[0]), *(line.rstrip() for line in lines)])


def _range(numbers: range) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


_MOST_GRACE = 25  # seconds; the agent kills after 30
_NO_PROGRAM = "There is no program to run: poprun [options] PROGRAM [arguments]."
_NOT_ADOPTED = ("host", "hostfile", "max_restarts", "only_output_from_instance", "print_topology")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a ``poprun`` command line, by default that of the process; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    set_up_log(0)
    try:
        options, program = command_line.parse(arguments)
        text = command_line.about(options)
        if text is not None:
            _show(text)
            return 0
        if problem := systems.elsewhere("poprun starts and ends processes by parts of"):
            raise Problem(f"{problem} A single instance needs no poprun: python PROGRAM.")
        return _run(options, program)
    except Problem as problem:
        logger.error("%s", problem)
        return problem.status
    except KeyboardInterrupt:
        logger.warning("Ended by SIGINT before anything was launched")
        return 128 + signal.SIGINT


def _show(text: str) -> None:
    """Print text of poprun; end the process if the pipe is closed (``| head``)."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL) if systems.POSIX else None
    print(text, flush=True)
    if before is not None:
        signal.signal(signal.SIGPIPE, before)


def _run(explicit: dict[str, Any], program: list[str]) -> int:
    if path := explicit.get("import_config"):
        explicit = {**command_line.read_config(path), **explicit}
    options = {option.key: option.default for option in OPTIONS} | explicit
    verbosity = 2 if options["vv"] else min(int(options["verbose"]), 2)
    set_up_log(verbosity)
    _check(options)
    if path := options["export_config"]:
        command_line.write_config(path, explicit, overwrite=options["overwrite_config"])
        logger.info("Wrote the options to %s", path)
        if not program:
            return 0
    _say_what_has_no_effect(explicit)
    place = placement.find_place()
    if place:
        _become(place, options, explicit, program)
    plan = _plan(options)
    _check_instance(options, plan)
    if options["print_topology"] or verbosity > 1:
        if options["print_topology"]:
            _show(topology_table(plan))
        else:
            print(topology_table(plan), file=sys.stderr, flush=True)
    if not program:
        if options["print_topology"]:
            return 0
        raise Problem(_NO_PROGRAM)
    return launch.launch(plan, program, launch.settings_of_run(plan, options))


def _check(options: Mapping[str, Any]) -> None:
    launch.check_subnet(options["host_subnet"])
    if options["host"] and options["hostfile"]:
        raise Problem("--host and --hostfile exclude each other; give one of them.")
    if options["grace_seconds"] > _MOST_GRACE:
        raise Problem(f"--grace-seconds takes at most {_MOST_GRACE}.")
    if options["master_port"] > 65535:
        raise Problem(f"--master-port {options['master_port']} is no port: they end at 65535.")


def _check_instance(options: Mapping[str, Any], plan: Plan) -> None:
    only, count = options["only_output_from_instance"], len(plan.instances)
    if only is not None and only >= count:
        raise Problem(f"--only-output-from-instance {only}: there are {count} instances, from 0.")


def _plan(options: Mapping[str, Any]) -> Plan:
    listed: tuple[str, ...] = ("localhost",)
    if options["host"]:
        listed = placement.expand_hosts(options["host"])
    elif options["hostfile"]:
        listed = placement.read_hostfile(options["hostfile"])
    return placement.make_plan(
        listed,
        options["num_instances"] or 1,
        options["num_replicas"],
        options["ipus_per_replica"],
        options["num_ilds"],
    )


def _say_what_has_no_effect(explicit: Mapping[str, Any]) -> None:
    names = [o.name for o in OPTIONS if o.group == NO_EFFECT and o.key in explicit]
    if names:
        listed = ", ".join(f"--{name}" for name in names)
        logger.warning("Accepted without effect, as there is no IPU partition here: %s", listed)


def _become(
    place: Place, options: dict[str, Any], explicit: Mapping[str, Any], program: list[str]
) -> NoReturn:
    """Replace this process by the program, as one rank of an existing MPI or Slurm job."""
    count = options["num_instances"] or place.size
    if count != place.size:
        raise Problem(
            f"{place.by} started {place.size} processes, but --num-instances is {count}; leave "
            "the option out, or ask both for the same number."
        )
    if not program:
        raise Problem(_NO_PROGRAM)
    launch.check_program(program)
    variables = launch.variables_of_place(place, options)
    address = os.environ.get("MASTER_ADDR") or options["master_addr"] or place.address
    if address is None:
        raise Problem(
            f"{place.by} started processes on several hosts, but does not tell where the first "
            "one is: give all of them --master-addr, or set MASTER_ADDR."
        )
    port = os.environ.get("MASTER_PORT") or options["master_port"] or place.port
    if place.rank == 0:
        unused = ", ".join(f"--{n.replace('_', '-')}" for n in _NOT_ADOPTED if n in explicit)
        logger.warning(
            "%s has started %d processes; this is one of them, and starts nothing more%s",
            place.by,
            place.size,
            f". Without effect: {unused}" if unused else "",
        )
    os.environ.update(variables | {"MASTER_ADDR": address, "MASTER_PORT": str(port)})
    cores = len(os.sched_getaffinity(0))
    # Who started us may have bound each process to its own cores.
    sharing = place.local_size if cores == os.cpu_count() else 1
    os.environ.setdefault("OMP_NUM_THREADS", str(shim.threads(cores, sharing)))
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it is closed
        stream.flush()
    os.execvp(program[0], program)


if __name__ == "__main__":
    sys.exit(main())
