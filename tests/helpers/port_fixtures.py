"""Fixtures of the rules of ``abele port``: what a file becomes, and what is said of its lines."""

import contextlib
import io
import os
import re
import time
import unittest.mock

import torch
import torch.distributed as dist

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

_SAID = re.compile(r"  # ((?:ABP\d+ \w+(?:, )?)+)$")


def names(folder, whole=False):
    """The fixtures of a folder; only those that are ported whole."""
    ending = ".out.py" if whole else ".in.py"
    return sorted(each.name.removesuffix(ending) for each in folder.glob(f"*{ending}"))


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


def check(folder, name, to, update):
    """A fixture becomes what its ``.out.py`` says, with findings at its lines, and no others."""
    text, said = read(folder, name)
    result = port(Project([Source(f"{name}.py", text)]), to=to)
    expected = folder / f"{name}.out.py"
    if result.verdict is not Verdict.BLOCKED:
        if update:
            expected.write_text(result.after[f"{name}.py"])
        assert result.after[f"{name}.py"] == expected.read_text()
    else:
        assert not expected.exists()
    given = {(each.line, f"{each.code} {each.verdict.value}") for each in result.findings}
    assert said <= given
    bad = (Verdict.MANUAL, Verdict.BLOCKED)
    unexpected = [
        str(each)
        for each in result.findings
        if each.verdict in bad and (each.line, f"{each.code} {each.verdict.value}") not in said
    ]
    assert not unexpected


def check_again(folder, name, to):
    """To port what a fixture becomes changes nothing."""
    text = (folder / f"{name}.out.py").read_text()
    assert port(Project([Source(f"{name}.py", text)]), to=to).after[f"{name}.py"] == text


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
