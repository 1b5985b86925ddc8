"""The command ``cosmictagger``: a Hydra command line, two sub-commands, and a help with examples.

    cosmictagger run.id=NAME [--config-name PRESET] [GROUP=CHOICE] [KEY=VALUE] ...
    cosmictagger generate --events N --output FILE
    cosmictagger compile run.id=NAME run.compute_mode=RDU ...

Hydra changes no directory, writes no files and configures no log here.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cosmictagger import __version__
from cosmictagger.errors import ConfigError, CosmicTaggerError

if TYPE_CHECKING:
    from cosmictagger.config.composing import Config

# What the extra ``cosmictagger`` installs, by the names that are imported. This module imports none
# of them before ``main``, which says what to install where one is missing.
_PACKAGES = {"hydra", "omegaconf", "h5py", "tensorboard", "matplotlib"}

# `disabled` would switch off every logger that there is, ours among them.
_QUIET = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.output_subdir=null",
    "hydra.job.chdir=False",
    "hydra.run.dir=.",
    "hydra.sweep.dir=output",
    "hydra.sweep.subdir=.",
)
_PRESET = ("--config-name", "-cn")

Task = Callable[["Config"], int | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: without the program's name; default that of the process.

    Returns:
        The exit status: 0, 1 after an error or where a package of the extra is missing, 128 + N
        where signal N ended a run early.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = sys.argv
    # The record of a run names what was asked for, also where a program asked.
    sys.argv = ["cosmictagger", *arguments]
    try:
        import hydra  # noqa: F401  before any command begins what it could not end

        from cosmictagger.modes.stopping import interruptible

        with interruptible():
            return _run_command(arguments)
    except CosmicTaggerError as error:
        return _failed(error)
    except ModuleNotFoundError as missing:
        return _not_installed(missing)
    except KeyboardInterrupt as error:
        print(f"cosmictagger: {error or 'stopped'}; nothing is half written.", file=sys.stderr)
        return 128 + getattr(error, "signal", signal.SIGINT)
    except BrokenPipeError:  # who reads has seen enough, such as ``head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        sys.argv = before


def _failed(error: CosmicTaggerError) -> int:
    if not error.is_told:
        print(f"cosmictagger: {error}", file=sys.stderr)
    return 1


def _not_installed(missing: ModuleNotFoundError) -> int:
    """Say what to install; another missing module keeps its traceback."""
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


def _show(text: str) -> None:
    """Print text of a command to standard output."""
    if sys.stdout is None:
        raise CosmicTaggerError("Standard output is closed.")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # The interpreter would try to flush once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CosmicTaggerError(f"Standard output cannot be written: {error.strerror}.") from error


def _run_command(arguments: list[str]) -> int:
    if arguments[:1] == ["generate"]:
        from cosmictagger import commands

        return commands.generate(arguments[1:])
    if "--version" in arguments:
        _show(f"cosmictagger {__version__}")
        return 0
    if "--help" in arguments or "-h" in arguments:
        from cosmictagger import commands

        _show(commands.help_text())
        return 0
    if arguments[:1] == ["compile"]:
        from cosmictagger.modes import training

        return _configured(arguments[1:], training.compile_program)
    return _configured(arguments, _run)


def _configured(arguments: Sequence[str], task: Task) -> int:
    """Compose the configuration of a command line and hand it to a task."""
    from cosmictagger.config.composing import as_typed, check_preset, composed

    preset, others, overrides = _sorted(arguments)
    check_preset(preset)
    if others:
        return _with_hydra([*_PRESET[:1], preset, *others, *as_typed(overrides)], task)
    signalled = task(composed(preset, overrides))
    return 0 if signalled is None else 128 + signalled


def _sorted(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the preset, Hydra's other options, and the overrides; people mix them in any order."""
    preset, options, overrides = "config", [], []
    words = iter(arguments)
    for word in words:
        name, is_given, value = word.partition("=")
        if name in _PRESET:
            preset = value if is_given else next(words, "")
        elif word.startswith("-"):
            options.append(word)
        elif is_given or word.startswith("~"):
            overrides.append(word)
        elif options:
            options.append(word)  # the value of the option before it
        else:
            raise ConfigError(
                f"{word} is neither KEY=VALUE nor a command; commands are generate and compile. "
                "See cosmictagger --help."
            )
    return preset, options, overrides


def _with_hydra(arguments: Sequence[str], task: Task) -> int:
    """Hydra's own command line, for --multirun, --cfg and what else it can do."""
    import hydra

    from cosmictagger.config.composing import register, typed

    register()
    signals: list[int | None] = []

    def composed(config: Any) -> None:
        try:
            signals.append(task(typed(config)))
        except CosmicTaggerError as error:
            # Hydra would put its own frame around it.
            raise SystemExit(_failed(error)) from None
        except Exception:  # noqa: BLE001  told once and whole
            traceback.print_exc()
            raise SystemExit(1) from None

    before = sys.argv
    sys.argv = ["cosmictagger", *arguments, *_QUIET]
    decorated: Any = hydra.main(version_base="1.3", config_path=None, config_name="config")
    try:
        decorated(composed)()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    finally:
        sys.argv = before
    ended = next((number for number in signals if number is not None), None)
    return 0 if ended is None else 128 + ended


def _run(config: Config) -> int | None:
    """Run the mode of a configuration."""
    from cosmictagger.config.keys import ModeKind
    from cosmictagger.launch import launched

    with launched(config) as launch:
        if config.mode.name is ModeKind.train:
            from cosmictagger.modes.training import train

            return train(launch)
        if config.mode.name is ModeKind.iotest:
            from cosmictagger.modes.iotest import measure

            return measure(launch)
        from cosmictagger.modes.inference import infer

        return infer(launch)


if __name__ == "__main__":
    sys.exit(main())
