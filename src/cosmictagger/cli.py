"""The command ``cosmictagger``: configuration keys, sub-commands and help.

cosmictagger run.id=NAME [--config-name PRESET] [GROUP=CHOICE] [KEY=VALUE] ...
cosmictagger generate --events N --output FILE
cosmictagger compile run.id=NAME run.compute_mode=RDU ...
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from abele import systems
from cosmictagger import __version__
from cosmictagger.errors import ConfigError, CosmicTaggerError

if TYPE_CHECKING:
    from cosmictagger.config.composing import Config

# What the extra ``cosmictagger`` installs, by the names that are imported. This module imports none
# of them before ``main``, which says what to install where one is missing.
_PACKAGES = {"h5py", "tensorboard", "matplotlib"}
_PRESET = ("--config-name", "-cn")
# Module and function of each mode.
_MODES = {
    "train": ("training", "train"),
    "inference": ("inference", "infer"),
    "iotest": ("iotest", "measure"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of ``cosmictagger``.

    Args:
        argv: without the program's name; default that of the process.

    Returns:
        The exit status: 0, 2 after a mistake in the command line, 1 after another error or where a
        package of the extra is missing, 128 + N where signal N ended a run early.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = sys.argv
    # The record of a run names what was asked for, also where a program asked.
    sys.argv = ["cosmictagger", *arguments]
    try:
        import h5py  # noqa: F401  before any command begins what it could not end

        from cosmictagger.modes.stopping import interruptible

        with interruptible():
            return _run_command(arguments)
    except CosmicTaggerError as error:
        if not error.is_told:
            print(f"cosmictagger: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except ModuleNotFoundError as missing:
        return _not_installed(missing)
    except KeyboardInterrupt as error:
        print(f"cosmictagger: {error or 'stopped'}; nothing is half written.", file=sys.stderr)
        if argv is None:  # this process ends, whose last collection takes a second
            gc.freeze()
        return 128 + getattr(error, "signal", signal.SIGINT)
    except BrokenPipeError:  # who reads has seen enough, such as ``head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return systems.PIPE_CLOSED
    finally:
        sys.argv = before


def _not_installed(missing: ModuleNotFoundError) -> int:
    """Explain which package to install for a missing module; re-raise for unknown modules."""
    package = (missing.name or "").partition(".")[0]
    if package not in _PACKAGES:
        raise missing
    print(
        f"cosmictagger needs the package {package}, which is not installed. Install all that "
        "it needs with: pip install 'abele[cosmictagger]' (in a clone: pip install -e "
        "'.[cosmictagger]')",
        file=sys.stderr,
    )
    return 1


def _run_command(arguments: list[str]) -> int:
    if arguments[:1] == ["generate"]:
        from cosmictagger import commands

        return commands.generate(arguments[1:])
    if "--version" in arguments:
        print(f"cosmictagger {__version__}", flush=True)
        return 0
    if "--help" in arguments or "-h" in arguments:
        from cosmictagger import commands

        print(commands.help_text(), flush=True)
        return 0
    from cosmictagger.config.composing import composed

    if arguments[:1] == ["compile"]:
        from cosmictagger.modes import training

        training.compile_program(composed(*_sorted(arguments[1:])))
        return 0
    signalled = _run(composed(*_sorted(arguments)))
    return 0 if signalled is None else 128 + signalled


def _sorted(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Split arguments in any order into the preset and the overrides."""
    preset, overrides = "config", []
    words = iter(arguments)
    for word in words:
        name, is_given, value = word.partition("=")
        if name in _PRESET:
            preset = value if is_given else next(words, "")
        elif is_given and not word.startswith("-"):
            overrides.append(word)
        else:
            raise ConfigError(
                f"{word} is neither KEY=VALUE nor a command; commands are generate and compile. "
                "See cosmictagger --help."
            )
    return preset, overrides


def _run(config: Config) -> int | None:
    """Run the mode of a configuration."""
    from cosmictagger.launch import launched

    with launched(config) as launch:
        module, function = _MODES[config.mode.name.name]
        return getattr(importlib.import_module(f"cosmictagger.modes.{module}"), function)(launch)


if __name__ == "__main__":
    sys.exit(main())
