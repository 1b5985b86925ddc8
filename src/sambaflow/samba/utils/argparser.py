"""The command line of a SambaFlow program: sub-commands and common options.

Options of the vendor's compiler are accepted and said once. A program's own option of the same name
takes the place of ours.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from abele.arguments import Parser
from sambaflow.errors import UsageError
from sambaflow.logging import hint

AddOptions = Callable[[argparse.ArgumentParser], Any]

_COMMANDS = {
    "compile": "capture the model with dummy inputs and write a PEF file",
    "run": "train or infer with a PEF file",
    "test": "compare the PEF file with plain PyTorch",
    "measure-performance": "print latency and samples per second",
    "measure-sections": "print the time of forward, backward and update",
}
# What programs read whatever the sub-command is.
_DEFAULTS: dict[str, Any] = {
    "pef": None,
    "output_folder": "out",
    "pef_name": None,
    "world_size": 1,
    "n_chips": 1,
    "reduce_on_rdu": False,
    "run_graph_only": False,
    "num_iterations": 100,
    "json": None,
    "compiled_stats_json": None,
    "min_duration": 0.0,
    "acc_report_json": None,
    "visualize": False,
    "distlearn_config": None,
    "verbose_report": False,
    "resource_report_path": None,
    "num_sections": None,
}
_SWITCHES = ("mac-v1", "mac-v2", "weight-sharing", "default-par-factors", "o0", "o1")
_OPTIONAL_SWITCHES = (
    "enable-tiling",
    "enable-conv-tiling",
    "enable-stoc-rounding",
    "enable-stochastic-rounding",
)
_FILES = ("mac-human-decision", "compiler-configs-file", "compiler-configs")


def parse_app_args(
    argv: Sequence[str] | None = None,
    common_parser_fn: AddOptions | None = None,
    run_parser_fn: AddOptions | None = None,
    test_parser_fn: AddOptions | None = None,
    compile_parser_fn: AddOptions | None = None,
    dev_mode: bool = False,
) -> argparse.Namespace:
    """Parse the command line ``PROGRAM COMMAND [options]``.

    Args:
        argv: arguments behind the program's name; default those of the process.
        common_parser_fn: adds a program's options to every command's parser.
        run_parser_fn: adds options of ``run``, ``measure-performance`` and ``measure-sections``.
        test_parser_fn: adds options of ``test``.
        compile_parser_fn: adds options of ``compile``.
        dev_mode: accepted.

    Returns:
        The options; ``command`` is the sub-command.

    Raises:
        SystemExit: the command line is wrong, or asks for help.
    """
    del dev_mode
    parser = Parser(conflict_handler="resolve")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    by_command = {"compile": compile_parser_fn, "test": test_parser_fn}
    for command, text in _COMMANDS.items():
        each = commands.add_parser(command, help=text, description=text, conflict_handler="resolve")
        _add_common(each)
        _add_of(command, each)
        _add_hints(each)
        for add in (common_parser_fn, by_command.get(command, run_parser_fn)):
            if add is not None:
                add(each)
    args = parser.parse_args(argv)
    for name, value in _DEFAULTS.items():
        if not hasattr(args, name):
            setattr(args, name, value)
    _say_hints(args)
    return args


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-b", "--batch-size", type=_positive, default=1, help="samples of a batch (default 1)")
    add("-mb", "--microbatch-size", type=int, help="accepted")
    add("--num-spatial-batches", type=int, default=1, help="accepted")
    add("--mapping", choices=("section", "spatial"), default="section", help="accepted")
    add("--inference", action="store_true", help="forward alone, without an optimizer")
    add("--data-parallel", action="store_true", help="average gradients over all processes")
    add("-ws", "--world-size", type=int, default=1, help="number of processes")
    add("--pef-name", help="base name of the PEF and its folder")
    add("--output-folder", default="out", help="where the PEF's folder goes (default out)")
    add("--debug", action="store_true", help="accepted")


def _add_of(command: str, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    if command == "compile":
        return
    add("-p", "--pef", required=True, help="the file that compile wrote")
    if command in ("run", "measure-performance"):
        add("--reduce-on-rdu", action="store_true", help="accepted")
    if command == "run":
        add("--distlearn-config", help="accepted")
    if command.startswith("measure"):
        add("-n", "--num-iterations", type=_positive, default=100, help="counted (default 100)")
    if command == "measure-performance":
        add("--run-graph-only", action="store_true", help="accepted")
        add("--min-duration", type=float, default=0.0, help="seconds at least")
        add("--json", help="write the numbers to this file")
        add("--compiled-stats-json", help="write what was compiled to this file")
    if command == "measure-sections":
        add("--num-sections", type=int, help="accepted")


def _add_hints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("accepted, without effect here")
    group.add_argument("--num-tiles", type=int, default=None)
    group.add_argument("--n-chips", type=int, default=1)
    group.add_argument("--tensor-parallel", choices=("none", "batch", "weight"), default=None)
    for name in _SWITCHES:
        group.add_argument(f"--{name}", action="store_true")
    for name in _OPTIONAL_SWITCHES:
        group.add_argument(f"--{name}", nargs="?", const=True, default=False, type=_true)
    for name in _FILES:
        group.add_argument(f"--{name}")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"has to be at least 1, found {number}")
    return number


def _true(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"takes True or False, found {text!r}")
    return values[text.lower()]


def _say_hints(args: argparse.Namespace) -> None:
    names = (*_SWITCHES, *_OPTIONAL_SWITCHES, *_FILES, "num-tiles", "tensor-parallel")
    for name in names:
        if getattr(args, name.replace("-", "_"), None):
            hint(f"--{name}")
    if getattr(args, "n_chips", 1) not in (None, 1):
        hint("--n-chips")
    if getattr(args, "mapping", "section") != "section":
        hint("--mapping spatial")


def parse_yaml_to_args(
    file: str | os.PathLike[str], args: argparse.Namespace
) -> argparse.Namespace:
    """Override arguments by the top-level keys of a YAML file; dashes become underscores.

    Args:
        file: a mapping of names to values.
        args: changed in place.

    Returns:
        ``args``.

    Raises:
        UsageError: PyYAML is missing, or the file is no mapping.
        OSError: the file cannot be read.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError("Reading YAML needs PyYAML: pip install pyyaml.") from error
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not readable YAML: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} has to be a mapping of options to values, found {values!r}.")
    for name, value in values.items():
        setattr(args, str(name).replace("-", "_"), value)
    return args
