"""The bar of the compilation leaves room for what is said meanwhile."""

import contextlib
import os
import pty
import re
import subprocess
import termios
import warnings

from helpers.warm_python import python
from poptorch._wrapper.progress import CompilationProgress

PROGRAM = """
import warnings
from poptorch._wrapper.progress import CompilationProgress

with CompilationProgress(show=True) as progress:
    progress.on_stage("compile step", 0.3)
    warnings.warn("the cache is full")
    progress.on_stage("load", 0.9)
"""


def on_a_terminal(program):
    """What a program writes to standard error, if that is a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    with subprocess.Popen([python(), "-c", program], stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_warning_stands_on_a_line_of_its_own():
    shown = on_a_terminal(PROGRAM)
    (line,) = [line for line in shown.split("\n") if "cache is full" in line]
    *bars, told = line.split("\r")
    assert told == "<string>:7: UserWarning: the cache is full"
    assert not bars[-1].strip(), "blanked out before the warning"
    assert "Graph compilation: 100%" in shown


def test_a_file_gets_one_line_per_stage():
    slow = PROGRAM.replace("    warnings.warn", "    import time; time.sleep(1)\n    warnings.warn")
    shown = subprocess.run([python(), "-c", slow], stderr=subprocess.PIPE, check=True).stderr
    lines = re.sub(r"\[\d+\.\d s\]", "[TIME]", shown.decode()).splitlines()
    assert lines == [
        "Graph compilation:  30% compile step [TIME]",
        "<string>:8: UserWarning: the cache is full",
        "Graph compilation:  90% load [TIME]",
        "Graph compilation: 100% done [TIME]",
    ]


def test_recorded_warnings_are_still_recorded():
    before = warnings.showwarning
    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always")
        with CompilationProgress(show=True):
            warnings.warn("the cache is full", UserWarning, stacklevel=1)
    assert [str(one.message) for one in result] == ["the cache is full"]
    assert warnings.showwarning is before
