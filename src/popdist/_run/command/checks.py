"""Checks before anything is launched."""

import contextlib
import ipaddress
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from popdist._run.instances import shim, ssh
from popdist._run.placement import hosts
from popdist._run.placement.plan import Plan
from popdist._run.problems import NOT_FOUND, Problem


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
        raise Problem(f"{name} cannot be started as a program; use {first}{name}.", NOT_FOUND)
    raise Problem(
        f"There is no program {name}, neither at that path nor in PATH. The first word after the "
        "options of poprun is the program.",
        NOT_FOUND,
    )


def address(plan: Plan, options: Mapping[str, Any]) -> str:
    """Return where instances find this process.

    Args:
        plan: The run.
        options: Values of poprun's options, by key.

    Raises:
        Problem: No address of this machine is in ``--host-subnet``.
    """
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
