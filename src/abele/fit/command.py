"""The command ``abele fit SCRIPT``: estimates whether a script's model fits into memory."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

from abele import questions
from abele.errors import FitError
from abele.fit import function, limits
from abele.questions import Question, Report

#: Exit status of a program that handles Ctrl-C itself, as shells give it.
_INTERRUPTED = 128 + signal.SIGINT
#: Exit status by verdict; 1 and 2 are those of errors.
STATUS = {"fits": 0, "does not fit": 3, "uncertain": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add description and arguments of ``abele fit`` to its parser."""
    parser.description = (
        "Runs SCRIPT up to its first compile and says whether the model fits. Exits with 0 if it "
        "fits, 3 if it does not, 4 if that is uncertain."
    )
    add_script(parser, "fit [-h] [--limit LIMIT]")
    parser.add_argument(
        "--limit",
        metavar="LIMIT",
        help="cpu, cuda:0, a size such as 8GiB, or mk2 for IPUs (default: the device)",
    )


def add_script(parser: argparse.ArgumentParser, own: str) -> None:
    """Add the arguments of all commands that run a script up to its first compile.

    Args:
        parser: of the command.
        own: usage text of the command and the options that the caller adds.
    """
    parser.usage = f"abele {own} [--json] SCRIPT [-- ARG ...]"
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def command(parsed: argparse.Namespace) -> int:
    """Run ``abele fit`` and return the exit status.

    Args:
        parsed: arguments parsed by the parser of ``add_arguments``; ``rest`` is for the script.

    Raises:
        FitError: there is no such limit or script, or the script fails or compiles nothing.
    """
    if parsed.limit is not None:
        limits.of_machine(parsed.limit)  # before the script does anything
    of_function = functools.partial(function.check, limit=parsed.limit)
    return answered(parsed, parsed.limit, f"fit {parsed.script}", of_function)


def answered(
    parsed: argparse.Namespace,
    wanted: Any,
    called: str,
    of_function: Callable[..., Report] | None = None,
) -> int:
    """Run a script up to its first compile, print the estimate, and return the exit status.

    Args:
        parsed: arguments of a command that calls ``add_script``.
        wanted: options of the question, such as a limit.
        called: the command line without the arguments of the script.
        of_function: see ``Question``.

    Raises:
        FitError: there is no such script, or it fails or compiles nothing that can be estimated.
        KeyboardInterrupt: Ctrl-C was pressed; the message tells when.
    """
    question = Question(command=parsed.name, wanted=wanted, of_function=of_function)
    report = _ask(question, parsed.script, parsed.rest, called)
    if parsed.json:
        print(json.dumps(report.data(), indent=1))
        return STATUS[report.data()["verdict"]]
    say = functools.partial(_say, parsed.name)
    try:
        for piece in report.pieces(say):
            print(piece, flush=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("after the answer, while changes were tried") from None
    return STATUS[report.data()["verdict"]]


def _say(command: str, text: str) -> None:
    print(f"abele {command}: {text}", file=sys.stderr, flush=True)


def _ask(question: Question, script: Path, arguments: list[str], called: str) -> Report:
    how = "without compiling a model"
    questions.asked = question
    try:
        running(script, arguments)
    except questions.Answered:
        pass
    except SystemExit as ended:  # its status is no answer: 3 would say that it does not fit
        how = f"with status {ended.code!r} before it compiled a model"
    except FitError:
        if question.answer is None and not question.refused:
            raise
    finally:
        questions.asked = None
    if question.answer is not None:
        return question.answer
    if question.refused:
        raise FitError(question.refused)
    if question.problem:
        raise FitError(f"{script} caught an error of its first call. {question.problem}")
    raise FitError(f"{script} ended {how}, so there is nothing to say. {_hints(script, called)}")


def _hints(script: Path, command: str) -> str:
    """Return advice for a script that compiles no model."""
    return (
        f"Give it the arguments with which it does, behind --: abele {command} -- ARG ... "
        "Answers are for models that a wrapper compiles in this process, and for functions that "
        "abele.compile decorates, from their second call on. Another plain PyTorch program has to "
        f"be ported first: abele port {script} -o FOLDER"
    )


def running(script: Path, arguments: list[str]) -> None:
    """Run a script as ``__main__``, with stdout redirected to stderr and without recording runs.

    Raises:
        FitError: there is no such script, or it failed; its traceback has been printed.
        KeyboardInterrupt: Ctrl-C was pressed; the message tells where.
        BaseException: another exception that ends the script.
    """
    if not script.is_file():
        raise FitError(f"There is no file {str(script)!r}. Name a Python program to run.")
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    questions.inspecting = True
    try:
        with _on_stderr():
            runpy.run_path(str(script), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - whatever the script raises
        trace = _of_script(error.__traceback__, script)
        # Python's own hook shows the traceback that the error has, whatever it is given.
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise FitError(
            f"{script} failed with {type(error).__name__}; its traceback is above."
        ) from None
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(_while_running(script, interrupt.__traceback__)) from None
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            raise KeyboardInterrupt(_while_running(script, None)) from None
        raise
    finally:
        sys.argv, sys.path[:] = before
        questions.inspecting = False


@contextlib.contextmanager
def _on_stderr() -> Generator[None]:
    """Redirect stdout to stderr, also of child processes, while the context is open."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _while_running(script: Path, trace: TracebackType | None) -> str:
    """Describe where a script was interrupted, with its line if known."""
    of_script = _of_script(trace, script)
    line = "" if of_script is None else f", in line {of_script.tb_lineno}"
    return f"while {script} ran{line}"


def _of_script(trace: TracebackType | None, script: Path) -> TracebackType | None:
    """Return the part of a traceback that begins at the script's own first frame."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    return trace
