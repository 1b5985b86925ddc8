"""Fixtures of the rules of ``abele port``: what a file becomes, and what is said of its lines."""

import contextlib
import functools
import io
import os
import re
import time
import unittest.mock

import torch
import torch.distributed as dist

from abele.port import files
from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

_SAID = re.compile(r"  # ((?:ABP\d+ \w+(?:, )?)+)$")


def names(folder, whole=False):
    """The fixtures of a folder; only those that are ported whole."""
    every = sorted(each.name.removesuffix(".in.py") for each in folder.glob("*.in.py"))
    return [each for each in every if not (whole and each.startswith("blocked_"))]


def read(folder, name):
    """The program of a fixture, and what it says is said of its lines."""
    said, lines = set(), []
    text = (folder / f"{name}.in.py").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        match = _SAID.search(line)
        if match:
            said |= {(number, each.strip()) for each in match.group(1).split(",")}
            line = line[: match.start()]
        lines.append(line)
    return "\n".join(lines) + "\n", said


@functools.cache
def ported(folder, name):
    """The port of a fixture, and its text."""
    result = port(Project([Source(f"{name}.py", read(folder, name)[0])]))
    return result, result.after[f"{name}.py"]


def check(folder, name, update):
    """Findings are at the lines of a fixture, no others; ``NAME.diff`` is what changes, if any."""
    said = read(folder, name)[1]
    result, _ = ported(folder, name)
    expected, changes = folder / f"{name}.diff", files.difference(result)
    if expected.exists() and update:
        expected.write_text(changes)
    assert not expected.exists() or changes == expected.read_text()
    assert (result.verdict is Verdict.BLOCKED) == name.startswith("blocked_")
    given = {(each.line, f"{each.code} {each.verdict.value}") for each in result.findings}
    assert said <= given
    bad = {each for each in given if each[1].endswith((" manual", " blocked"))}
    assert not bad - said


def _destroyed_idle(*arguments, destroy=dist.destroy_process_group):
    """Let a process group's threads become idle before it goes.

    Its destructor waits for them with the interpreter locked; one that still has to let go of an
    object of Python would wait for ever.
    """
    time.sleep(0.2)
    destroy(*arguments)


@contextlib.contextmanager
def in_float64():
    """Programs compute in float64 meanwhile, unless they say otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def printed(path):
    """Run a program and return the lines that it prints.

    Environment variables that it sets are taken back.
    """
    torch.manual_seed(7)
    text = io.StringIO()
    variables = {"__name__": "__main__", "__file__": str(path)}
    slowly = unittest.mock.patch.object(dist, "destroy_process_group", _destroyed_idle)
    with contextlib.redirect_stdout(text), unittest.mock.patch.dict(os.environ), slowly:
        exec(compile(path.read_text(), path, "exec"), variables)
    return text.getvalue().splitlines()
