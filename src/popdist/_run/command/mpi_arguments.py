"""Arguments for mpirun, of which the environment of instances is used."""

import dataclasses
import re
import shlex
from collections.abc import Sequence

from popdist._run.problems import Problem

_KNOWN = ("--tag-output", "-tag-output", "--allow-run-as-root", "-allow-run-as-root")
_INTERFACE = "btl_tcp_if_include"


@dataclasses.dataclass
class Variables:
    """Environment variables that arguments ask for.

    Args:
        values: Those with a value.
        names: Those taken from poprun's own environment.
        ignored: Arguments that mean nothing here.
    """

    values: dict[str, str] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)


def read(texts: Sequence[str], option: str) -> Variables:
    """Read arguments of mpirun.

    Args:
        texts: As given on the command line, each one or several arguments.
        option: Named in errors.

    Raises:
        Problem: Quotes that do not close, or ``-x`` without a name.
    """
    variables = Variables()
    for text in texts:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise Problem(f"--{option} {text!r} cannot be read: {error}.") from error
        while words:
            _take(words.pop(0), words, variables, option)
    return variables


def read_of_instances(texts: Sequence[str], count: int) -> dict[int, Variables]:
    """Read ``IDX:ARGS`` for single instances.

    Args:
        texts: As given on the command line.
        count: How many instances there are.

    Returns:
        Variables by instance.

    Raises:
        Problem: There is no such instance, or its arguments cannot be read.
    """
    option = "instance-mpi-local-args"
    by_instance: dict[int, list[str]] = {}
    for text in texts:
        index, colon, arguments = text.partition(":")
        if not colon or not index.isdecimal():
            raise Problem(f'--{option} takes IDX:"ARGS" such as 0:"-x NAME=value", not {text!r}.')
        if int(index) >= count:
            raise Problem(f"--{option} names instance {index}, but there are {count}, from 0.")
        by_instance.setdefault(int(index), []).append(arguments)
    return {index: read(arguments, option) for index, arguments in by_instance.items()}


def _take(word: str, words: list[str], variables: Variables, option: str) -> None:
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
