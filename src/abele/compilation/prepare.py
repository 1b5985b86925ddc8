"""Command ``abele prepare``: compiles a target's kernels ahead of the first program."""

from __future__ import annotations

import argparse
import time

from abele.errors import TargetError
from abele.targets import get_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele prepare`` to its parser."""
    parser.description = (
        "Compiles abele's kernels for this machine, about half a minute of work. Otherwise each "
        "program compiles those that it calls beside its first steps. Run it after installing, or "
        "before jobs start that share a home folder."
    )
    parser.add_argument(
        "target", nargs="?", default="cpu", help="what programs are to run on (default: cpu)"
    )


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele prepare``: compile a target's kernels, and return the exit status.

    Raises:
        TargetError: there is no such target, or no compiler.
        CompilerError: the compiler does not accept the kernels.
    """
    target = get_target(parsed.target)
    reason = target.cannot_compile()
    if reason is not None:
        raise TargetError(f"Target {target.name!r} cannot be prepared: {reason}")
    if not target.setup_seconds_left():
        target.prepare()  # says so where the compiler is none
        print(f"Target {target.name!r} is prepared; nothing had to be compiled.")
        return 0
    began = time.perf_counter()
    print(f"Compiling abele's kernels for target {target.name!r}, about half a minute.", flush=True)
    target.prepare()
    print(f"Target {target.name!r} is prepared; that took {time.perf_counter() - began:.0f} s.")
    return 0
