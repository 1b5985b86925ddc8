"""The bar of the compilation leaves room for what is said meanwhile."""

import subprocess
import sys
import warnings

from poptorch._progress import CompilationProgress

PROGRAM = """
import warnings
from poptorch._progress import CompilationProgress

with CompilationProgress(show=True) as progress:
    progress.update("compile step", 0.3)
    warnings.warn("the cache is full")
    progress.update("load", 0.9)
"""


def test_a_warning_stands_on_a_line_of_its_own():
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, check=True
    ).stderr.decode()
    (line,) = [line for line in shown.split("\n") if "cache is full" in line]
    *bars, told = line.split("\r")
    assert told == "<string>:7: UserWarning: the cache is full"
    assert not bars[-1].strip(), "blanked out before the warning"
    assert "Graph compilation: 100%" in shown


def test_recorded_warnings_are_still_recorded():
    before = warnings.showwarning
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with CompilationProgress(show=True):
            warnings.warn("the cache is full", UserWarning, stacklevel=1)
    assert [str(one.message) for one in found] == ["the cache is full"]
    assert warnings.showwarning is before
