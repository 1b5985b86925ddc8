"""The command ``cosmictagger``: a Hydra command line, two sub-commands, and a help that teaches.

    cosmictagger run.id=NAME [--config-name PRESET] [GROUP=CHOICE] [KEY=VALUE] ...
    cosmictagger generate --events N --output FILE
    cosmictagger compile run.id=NAME run.compute_mode=RDU ...

Hydra changes no directory, writes no files and configures no log here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from omegaconf import DictConfig

from cosmictagger import __version__
from cosmictagger.config.mode import ModeKind
from cosmictagger.config.root import Config, register, typed
from cosmictagger.errors import CosmicTaggerError

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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: without the program's name; default that of the process.

    Returns:
        The exit status: 0, 1 after an error, 128 + N where signal N ended a run early.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["generate"]:
            from cosmictagger.commands import generate

            return generate.main(arguments[1:])
        if "--version" in arguments:
            print(f"cosmictagger {__version__}")
            return 0
        if "--help" in arguments or "-h" in arguments:
            from cosmictagger.commands import help as help_

            print(help_.text())
            return 0
        if arguments[:1] == ["compile"]:
            from cosmictagger.commands import compile as compile_

            return _with_hydra(arguments[1:], compile_.run)
        return _with_hydra(arguments, _run)
    except CosmicTaggerError as error:
        print(f"cosmictagger: {error}", file=sys.stderr)
        return 1


def _with_hydra(arguments: Sequence[str], task: Callable[[Config], int | None]) -> int:
    """Composes the configuration of a command line and hands it to a task."""
    register()
    signals: list[int | None] = []

    def composed(config: DictConfig) -> None:
        try:
            signals.append(task(typed(config)))
        except CosmicTaggerError as error:
            # Hydra would put its own frame around it.
            print(f"cosmictagger: {error}", file=sys.stderr)
            raise SystemExit(1) from None

    before: list[str] = sys.argv
    # Hydra wants its options before all overrides; people write them anywhere.
    overrides = [each for each in arguments if _is_override(each)]
    options = [each for each in arguments if not _is_override(each)]
    sys.argv = ["cosmictagger", *options, *overrides, *_QUIET]
    decorated: Any = hydra.main(version_base="1.3", config_path=None, config_name="config")
    try:
        decorated(composed)()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    finally:
        sys.argv = before
    ended = next((number for number in signals if number is not None), None)
    return 0 if ended is None else 128 + ended


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def _run(config: Config) -> int | None:
    """Runs the mode of a configuration."""
    from cosmictagger.launch import launched

    with launched(config) as launch:
        if config.mode.name is ModeKind.train:
            from cosmictagger.training import train

            return train(launch)
        if config.mode.name is ModeKind.iotest:
            from cosmictagger.iotest import measure

            return measure(launch)
        from cosmictagger.inference import infer

        return infer(launch)


if __name__ == "__main__":
    sys.exit(main())
