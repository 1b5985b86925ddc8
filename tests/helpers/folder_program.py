"""Runs a program of several files in this process, and returns what it prints."""

import contextlib
import io
import logging
import runpy
import sys

import torch


def printed(script, arguments, monkeypatch):
    """What a script prints and logs, with the files of its folder as modules of its own.

    The target is ``reference``; it runs in the folder in which this process is.
    """
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.syspath_prepend(str(script.parent))
    output = io.StringIO()
    logger = logging.getLogger("tagger")
    handler = logging.StreamHandler(output)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    logger.setLevel(logging.INFO)
    names = {each.stem for each in script.parent.glob("*.py")}
    try:
        with torch.random.fork_rng(), contextlib.redirect_stdout(output):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        for name in names & sys.modules.keys():
            del sys.modules[name]
        sys.path.remove(str(script.parent))
    return output.getvalue()
