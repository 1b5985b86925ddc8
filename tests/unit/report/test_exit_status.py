"""The status with which a program ends, by whatever way it comes to its ``sys.exit``."""

import subprocess
import sys

import pytest

# Each case ends a process of its own, forked from one that has no torch to take apart at its end.
PROGRAM = """
import contextlib, os, sys, threading, types
sys.modules["torch"] = types.SimpleNamespace(__file__="torch/__init__.py")
from abele.report import endings

class Run:
    def failed(self, where, error):
        print("error", end="; ")

    def ended(self, how):
        endings.leave(self)
        print(how, end="; ", flush=True)

for case in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        endings.watch(Run())
        exec(case)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
INSIDE = """
def main():
    with contextlib.suppress(KeyError), open(os.devnull):
        try:
            sys.exit(4)
        finally:
            print(end="")
main()
"""
CAUGHT = """
try:
    sys.exit(5)
except SystemExit{0}:
    {1}
"""
CASES = {
    "sys.exit(3)": "ended with status 3; 3",
    "sys.exit('no data')": "ended with status 1: no data; 1",
    "sys.exit()": "finished; 0",
    "sys.exit(0)": "finished; 0",
    "sys.exit(256)": "finished; 0",
    INSIDE: "ended with status 4; 4",
    CAUGHT.format("", "pass"): "finished; 0",
    CAUGHT.format(" as error", "kept = error"): "finished; 0",
    CAUGHT.format("", "sys.exit(6)"): "ended with status 6; 6",
    CAUGHT.format("", "raise"): "ended with status 5; 5",
    CAUGHT.format("", "raise KeyError"): "error; failed; 1",
    "threading.Thread(target=sys.exit, args=(3,)).start()": "finished; 0",
    "import argparse; argparse.ArgumentParser().error('no')": "ended with status 2; 2",
}


@pytest.fixture(scope="module")
def said():
    command = [sys.executable, "-c", PROGRAM, *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(CASES), done.stderr
    return dict(zip(CASES, lines, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_status_other_than_0_is_said(case, said):
    assert said[case] == CASES[case]
