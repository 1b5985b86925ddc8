"""Command-line options of poprun, option files, and arguments for mpirun."""

import argparse
import dataclasses
import difflib
import importlib.metadata
import json
import re
import runpy
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Problem(Exception):
    """An error that stops poprun before the launch, with a message and a nonzero exit status."""

    def __init__(self, sentence: str, status: int = 2) -> None:
        super().__init__(sentence)
        self.status = status


NOT_FOUND = 127  # what shells say of a program that is not there


YES, NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclasses.dataclass(frozen=True)
class Option:
    """A command-line option of poprun: a row of the table of options.

    Attributes:
        kind: text, count (1 or more), number (0 or more), boolean or flag.
        default: None means that poprun decides.
        repeats: Whether it may be given several times; the values become a list.
    """

    name: str
    kind: str
    default: Any
    group: str
    help: str
    metavar: str = ""
    short: str = ""
    repeats: bool = False

    @property
    def key(self) -> str:
        """The option's name as an attribute of the parsed options."""
        return self.name.replace("-", "_")


ABOUT, RUN, HOSTS, PROGRAM = "about", "instances and replicas", "hosts", "what instances get"
OUTPUT, FAILURE, CONFIG = "output", "failures", "configuration files"
NO_EFFECT = "accepted, without effect here (there is no IPU partition)"

OPTIONS = (
    Option("help", "flag", False, ABOUT, "print this text", short="h"),
    Option("version", "flag", False, ABOUT, "print the version"),
    Option("version-format", "text", None, ABOUT, "text (default) or json", "FORMAT"),
    Option("num-instances", "count", None, RUN,
           "processes to start; divided evenly over the hosts. Default: 1, or under Slurm and MPI "
           "what these started", "N"),
    Option("num-replicas", "count", None, RUN,
           "copies of the model in all instances together; a multiple of the instances. "
           "Default: one per instance", "N"),
    Option("ipus-per-replica", "count", 1, RUN, "pipeline stages or IPUs of one copy", "N"),
    Option("num-ilds", "count", 1, RUN, "IPU-link domains; shown in the topology only", "N"),
    Option("host", "text", None, HOSTS,
           "hosts with commas in between; n[0-2,4] stands for n0, n1, n2, n4. "
           "Default: this machine", "LIST", short="H"),
    Option("hostfile", "text", None, HOSTS, "file with one host per line, instead of --host",
           "FILE"),
    Option("host-subnet", "text", None, HOSTS,
           "network that instances talk over, such as 10.1.0.0/16", "CIDR"),
    Option("master-addr", "text", None, HOSTS,
           "name or address of this machine for the other hosts", "ADDRESS"),
    Option("master-port", "number", 0, HOSTS,
           "port where instances find each other; 0: a free one", "PORT"),
    Option("executable-cache-path", "text", None, PROGRAM,
           "folder of compiled programs, as POPTORCH_CACHE_DIR", "DIR"),
    Option("mpi-global-args", "text", (), PROGRAM,
           "arguments as for mpirun; -x, --tag-output and --mca btl_tcp_if_include count, the "
           "rest is ignored", '"ARGS"', repeats=True),
    Option("mpi-local-args", "text", (), PROGRAM,
           'environment of the instances: "-x NAME=value" sets, "-x NAME" also takes it along to '
           "other hosts", '"ARGS"', repeats=True),
    Option("instance-mpi-local-args", "text", (), PROGRAM, "the same for one instance",
           'IDX:"ARGS"', repeats=True),
    Option("numa-aware", "boolean", False, PROGRAM,
           "bind each instance to its own cores, those of one NUMA node where possible"),
    Option("offline-mode", "boolean", False, PROGRAM,
           "compile only: PopTorch programs use the offline target"),
    Option("verbose", "flag", 0, OUTPUT, "say what is done; -vv says everything", short="v"),
    Option("vv", "flag", False, OUTPUT, "the same as -vv"),
    Option("tag-output", "boolean", True, OUTPUT,
           "begin each line with [1,INSTANCE]<stdout>: or <stderr>:"),
    Option("only-output-from-instance", "number", None, OUTPUT, "hide the output of the others",
           "I"),
    Option("print-topology", "boolean", False, OUTPUT,
           "print which instance runs where; without a program that is all"),
    Option("max-restarts", "number", 0, FAILURE,
           "start all instances anew, up to N times, after one of them failed", "N"),
    Option("grace-seconds", "number", 10, FAILURE,
           "time that instances have to end by themselves before they are killed", "S"),
    Option("import-config", "text", None, CONFIG,
           "take options from a file; those of the command line win", "FILE"),
    Option("export-config", "text", None, CONFIG,
           "write the options to a file; without a program that is all", "FILE"),
    Option("overwrite-config", "boolean", False, CONFIG,
           "whether --export-config may replace a file"),
    Option("allow-run-as-root", "flag", False, NO_EFFECT, "it is always allowed"),
    Option("vipu-server-host", "text", None, NO_EFFECT, "", "H"),
    Option("vipu-server-port", "number", 8090, NO_EFFECT, "", "P"),
    Option("vipu-server-timeout", "number", 120, NO_EFFECT, "", "S"),
    Option("vipu-partition", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-allocation", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-cluster", "text", None, NO_EFFECT, "", "NAME"),
    Option("vipu-partition-attempts", "number", 1, NO_EFFECT, "", "N"),
    Option("update-partition", "boolean", False, NO_EFFECT, ""),
    Option("reset-partition", "boolean", None, NO_EFFECT, ""),
    Option("remove-partition", "boolean", True, NO_EFFECT, ""),
    Option("sync-type", "text", None, NO_EFFECT, "", "T"),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}


_DESCRIPTION = """\
Starts PROGRAM in several instances (processes) that train together, and watches over them: the
lines they print come out whole and say which instance they are from; when one fails, the others
are ended, and its last lines and exit status become those of poprun.

  poprun --num-instances 2 python3 train.py --epochs 3
  poprun --num-instances 4 --num-replicas 8 --host a,b[0-2] python3 train.py
  poprun --num-instances 2 --max-restarts 3 python3 train.py    # the program resumes by itself
  srun -n 4 poprun python3 train.py                             # takes the place that Slurm gives
"""
_EPILOG = """\
Options before PROGRAM are poprun's; values follow after a space or "=". Booleans are yes, no, true,
false, 1 or 0. Exit status: that of the instance that failed first, 128 + N if signal N ended it;
2 for a mistake in the command line, 127 for a program that is not there.
"""


def parse(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Parse a command line of poprun into options by key, and the program with its arguments."""
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if re.fullmatch(r"-v+", word):
            values["verbose"] = values.get("verbose", 0) + len(word) - 1
            continue
        _take(word, rest, values)
    if values.pop("vv", False):
        values["verbose"] = 2
    return values, rest


def convert(option: Option, text: Any) -> Any:
    """Convert the text of an option from the command line or a file to its value."""
    word = str(text)
    if option.kind in ("boolean", "flag"):
        if word.lower() in (*YES, *NO):
            return word.lower() in YES
        expected = "yes or no"
    elif option.kind in ("count", "number"):
        least = 1 if option.kind == "count" else 0
        if re.fullmatch(r"[0-9]{1,9}", word) and int(word) >= least:
            return int(word)
        expected = f"an integer of up to nine digits, {least} or more"
    else:
        if word:
            return word
        expected = "a value"
    raise Problem(f"--{option.name} takes {expected}, not {word!r}.")


def _take(word: str, rest: list[str], values: dict[str, Any]) -> None:
    name, equals, value = word.partition("=")
    option = _option(name)
    if not equals:
        value = _next(option, rest)
    converted = convert(option, value)
    if option.repeats:
        values.setdefault(option.key, []).append(converted)
    elif option.name == "verbose":
        values["verbose"] = int(converted)
    else:
        values[option.key] = converted


def _next(option: Option, rest: list[str]) -> str:
    if option.kind == "flag":
        return "yes"
    if option.kind == "boolean" and not (rest and rest[0].lower() in (*YES, *NO)):
        return "yes"
    if not rest:
        raise Problem(f"--{option.name} needs a value: --{option.name} {option.metavar}.")
    return rest.pop(0)


def _option(name: str) -> Option:
    bare = name.lstrip("-")
    option = BY_NAME.get(bare) if name.startswith("--") else BY_SHORT.get(bare)
    if option:
        return option
    raise Problem(
        f"poprun has no option {name}.{_near(bare)} Options of the program come after the program; "
        "poprun --help lists those of poprun."
    )


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
    return f" Did you mean --{near[0]}?" if near else ""


def about(options: Mapping[str, Any]) -> str | None:
    """Return the help or version text if the options request it, else None."""
    if "help" in options:
        return parser().format_help()
    if "version" in options or "version_format" in options:
        return _version(options.get("version_format"))
    return None


def parser() -> argparse.ArgumentParser:
    """Return a parser for the help text only; `parse` reads values that begin with dashes."""
    root = argparse.ArgumentParser(
        "poprun",
        usage="poprun [options] PROGRAM [arguments of the program]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or root.add_argument_group(option.group)
        groups[option.group] = group
        names = [f"-{option.short}"] * bool(option.short) + [f"--{option.name}"]
        if option.kind == "flag":
            group.add_argument(*names, action="store_true", help=_described(option))
        else:
            group.add_argument(*names, metavar=metavar(option), help=_described(option))
    return root


def metavar(option: Option) -> str:
    """Return the placeholder of a poprun option's value in the help."""
    return option.metavar or {"boolean": "BOOL"}.get(option.kind, "")


def _described(option: Option) -> str | None:
    shown = default(option)
    more = f" (default: {shown})" if shown and option.group != NO_EFFECT else ""
    return (option.help + more) or None


def default(option: Option) -> str:
    """Format the default of an option for the help; empty without default."""
    if option.kind == "flag" or option.default in (None, ()):
        return ""
    return ("no", "yes")[option.default] if option.kind == "boolean" else str(option.default)


def _version(text: str | None) -> str:
    # Importing abele would load torch, and a source tree has no installed distribution.
    own = runpy.run_path(str(Path(__file__).parents[2] / "abele/version.py"))["__version__"]
    versions = {"poprun": own, "torch": _installed("torch")}
    if text == "json":
        return json.dumps(versions)
    return f"poprun {versions['poprun']} (torch {versions['torch']})"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_KNOWN = ("--tag-output", "-tag-output", "--allow-run-as-root", "-allow-run-as-root")
_INTERFACE = "btl_tcp_if_include"


@dataclasses.dataclass
class Variables:
    """Environment variables for instances: set values, forwarded names and ignored arguments."""

    values: dict[str, str] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)


def read_mpi_arguments(texts: Sequence[str], option: str) -> Variables:
    """Parse environment variables from mpirun arguments; errors name ``option``."""
    variables = Variables()
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise Problem(f"--{option} {text!r} cannot be read: {error}.") from error
        while words:
            _take_argument(words.pop(0), words, variables, option)
    return variables


def read_instance_arguments(texts: Sequence[str], count: int) -> dict[int, Variables]:
    """Parse ``IDX:ARGS`` arguments for single instances."""
    option = "instance-mpi-local-args"
    by_instance: dict[int, list[str]] = {}
    for text in texts:
        index, colon, arguments = text.partition(":")
        if not colon or not index.isdecimal():
            raise Problem(f'--{option} takes IDX:"ARGS" such as 0:"-x NAME=value", not {text!r}.')
        if int(index) >= count:
            raise Problem(f"--{option} names instance {index}, but there are {count}, from 0.")
        by_instance.setdefault(int(index), []).append(arguments)
    return {
        index: read_mpi_arguments(arguments, option) for index, arguments in by_instance.items()
    }


def _take_argument(word: str, words: list[str], variables: Variables, option: str) -> None:
    if word == "-x":
        if not words:
            raise Problem(f"--{option}: -x needs a variable: -x NAME or -x NAME=value.")
        _variable(words.pop(0), variables, option)
    elif word.lstrip("-") == "mca" and len(words) >= 2:
        name, value = words.pop(0), words.pop(0)
        # Names of interfaces only: gloo and NCCL take no networks.
        if name == _INTERFACE and re.fullmatch(r"[A-Za-z][\w.-]*", value):
            variables.values |= {"GLOO_SOCKET_IFNAME": value, "NCCL_SOCKET_IFNAME": value}
        else:
            variables.ignored.append(f"{word} {name} {value}")
    elif word not in _KNOWN:
        value = words.pop(0) if words and not words[0].startswith("-") else ""
        variables.ignored.append(f"{word} {value}".strip())


def _variable(text: str, variables: Variables, option: str) -> None:
    name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise Problem(f"--{option}: -x {text} names no variable: -x NAME or -x NAME=value.")
    if equals:
        variables.values[name] = value
    else:
        variables.names.append(name)


def read_config(path: str) -> dict[str, Any]:
    """Read options of poprun from a JSON object of names without dashes."""
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Problem(f"--import-config {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise Problem(f"--import-config {path} is not JSON: {error}.") from error
    if not isinstance(entries, dict):
        raise Problem(
            f'--import-config {path} should hold an object such as {{"num-instances": 2}}.'
        )
    return dict(_entry(path, name, value) for name, value in entries.items())


def _entry(path: str, name: str, value: Any) -> tuple[str, Any]:
    option = BY_NAME.get(name)
    if option is None or option.group in (ABOUT, CONFIG):
        raise Problem(f"--import-config {path} names {name!r}, which is no option.{_near(name)}")
    if option.name == "verbose" and isinstance(value, int):
        return option.key, int(value)
    if option.repeats:
        values = value if isinstance(value, list) else [value]
        return option.key, [convert(option, one) for one in values]
    return option.key, convert(option, value)


def write_config(path: str, values: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write the options of a poprun command line to a JSON file."""
    entries = {
        option.name: values[option.key]
        for option in OPTIONS
        if option.key in values and option.group != CONFIG
    }
    try:
        with open(path, "w" if overwrite else "x", encoding="utf-8") as file:
            file.write(json.dumps(entries, indent=2) + "\n")
    except FileExistsError:
        raise Problem(
            f"--export-config {path} exists; choose another name, or add --overwrite-config yes."
        ) from None
    except OSError as error:
        raise Problem(f"--export-config {path} cannot be written: {error.strerror}.") from error
