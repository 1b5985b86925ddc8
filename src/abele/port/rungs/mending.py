"""Writes the edit that mends a line: the old line, the new one, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LINE = re.compile(r"(?P<path>.*?):(?P<number>\d+): `(?P<text>.*)`", re.DOTALL)
_NORM = re.compile(r"((?:\w+\.)*)BatchNorm[123]d\(([^(),]+)\)")
#: Calls whose results are others at each start: without a seed, or with one of the clock.
_CHANCE = re.compile(
    r"((?:\b\w+\.)*(?:seed|default_rng|SystemRandom))\(\)"
    r"|((?:\b\w+\.)*(?:seed|manual_seed|default_rng|Random))\([^#]*(?:time|pid|urandom|uuid)\w*\([^#]*\)"
)
_WHY_NORM = (
    "batch norm averages over the rows of a batch, and one row gives no average; group norm "
    "averages within each row. Weights that were trained with batch norm do not fit it."
)
_WHY_SQUEEZE = (
    "squeeze() removes every dimension of size 1, also that of the rows: name the one that "
    "is meant."
)
_WHY_SPREAD = "this estimate divides by the number of rows less one, which is 0 for one row."


def where(line: str, port: Path, original: Path) -> tuple[str, str]:
    """A line's place and text; the original's place, if the line stands there once.

    Args:
        line: as ``user_line`` writes it, of the port.
        port: the script that was run.
        original: what it was ported from.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return line, ""
    path, text = Path(match["path"]), match["text"]
    with_port = path.resolve().parent, port.resolve().parent
    source = original.parent / path.name
    if with_port[0] == with_port[1] and source.is_file():
        lines = [
            each.strip()
            for each in source.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        ]
        # In the module of a port, the model and what else it was given are attributes.
        plain = [each.replace("self.", "") for each in lines]
        if plain.count(text.replace("self.", "")) == 1:
            at = plain.index(text.replace("self.", ""))
            return f"{source}:{at + 1}", lines[at]
    return f"{path}:{match['number']}", text


def replaced(place: str, text: str, new: str, why: str) -> str:
    """An edit in words and as a diff of one line; in words alone where it is no such line."""
    if new == text:
        return f"{place}: `{text}`\n{why}" if text else why
    return f"{place}: {why}\n- {text}\n+ {new}"


def of_one_row(answer: Mapping[str, Any], port: Path, original: Path) -> str:
    """The edit for what a batch of one row has broken.

    Args:
        answer: of ``one_row``.
        port: the script that was run.
        original: what it was ported from.
    """
    if "Expected more than 1 value per channel" in answer["problem"] and answer["module"]:
        place, text = where(answer["module"], port, original)
        return replaced(place, text, _NORM.sub(r"\1GroupNorm(1, \2)", text, count=1), _WHY_NORM)
    place, text = where(answer["line"], port, original)
    if answer.get("name") == "squeeze" and answer.get("lost"):
        new = _squeezed(text, answer["taken"])
        return replaced(place, text, new, _WHY_SQUEEZE)
    if answer.get("name") in ("std", "var") and not answer.get("lost"):
        return replaced(place, text, _spread(text, answer["name"]), _WHY_SPREAD)
    why = "this line needs more than one row; write it so that each row is computed by itself."
    return replaced(place, text, text, why)


def _squeezed(text: str, taken: Sequence[int]) -> str:
    """A line whose ``squeeze`` names the dimensions that it takes out with several rows."""
    single = [index for index, size in enumerate(taken) if size == 1]
    dimensions = str(single[0]) if len(single) == 1 else str(tuple(single))
    method, function = re.compile(r"\.squeeze\(\)"), re.compile(r"torch\.squeeze\(([\w.]+)\)")
    if len(method.findall(text)) == 1:
        return method.sub(f".squeeze({dimensions})", text)
    if len(function.findall(text)) == 1:
        return function.sub(rf"torch.squeeze(\1, {dimensions})", text)
    return text


def _spread(text: str, name: str) -> str:
    """A line whose deviation, or variance, is that of the rows and not an estimate."""
    call = re.compile(rf"\.{name}\(([^()=]*)\)")
    arguments = call.findall(text)
    if len(arguments) != 1:
        return text
    variance = f".var({arguments[0]}{', ' if arguments[0] else ''}correction=0)"
    return call.sub(variance + (".add(1e-5).sqrt()" if name == "std" else ""), text)


def of_inference(answer: Mapping[str, Any], port: Path, original: Path) -> str:
    """The edit for an inference model that computes something else than the plain model.

    Args:
        answer: of ``inference``.
        port: the script that was run.
        original: what it was ported from.
    """
    place, text = where(answer["line"], port, original)
    says = f"call {answer['calls']}, {place}: `{text}` returns something else than the plain model"
    if not answer["mode"]:
        return f"{says}\nCall copyWeightsToDevice() of the program after its weights have changed."
    if answer["calls"] == 1:
        mode = answer["mode"].rpartition(".")[2]
        return (
            f"{says}\nA wrapper copies the mode of its model: call {mode} of it in the port, too."
        )
    first, text = where(answer["first"], port, original)
    why = "a program keeps the mode of its first call; set the mode before that."
    return f"{says}\n{first}: {why}\n+ {answer['mode']}\n  {text}"


def of_training(answer: Mapping[str, Any]) -> str:
    """The edit for a training model whose program does not know what the host has changed.

    Args:
        answer: of ``training``.
    """
    match = _LINE.fullmatch(answer["line"])
    place, text = (match["path"] + ":" + match["number"], match["text"]) if match else ("", "")
    model = answer["model"]
    if answer["changed"] == "value":
        why = (
            f"the optimizer's {answer['name']} is {answer['host']:g} before this call, and the "
            f"program's is {answer['program']:g}; pass the new value on."
        )
        new = f"{model}.setOptimizer({answer['optimizer']})"
    elif answer["changed"] == "weight":
        why = (
            f"the host has changed {answer['name']}, and the program still has the old values; "
            "copy them to the device, here or where they change."
        )
        new = (
            f"if {model}.isCompiled():\n+     {model}.copyWeightsToHostIfNeeded()\n"
            f"+     {model}.copyWeightsToDevice()"
        )
    else:
        why = (
            f"{answer['name']} is in {answer['mode']} mode now, and a program keeps the mode of "
            "its first call; have it compiled anew, once, where the mode changes."
        )
        new = f"{model}.destroy()"
    return f"{place}: {why}\n+ {new}\n  {text}"


def of_chance(texts: Mapping[str, str]) -> str:
    """The edit for a program that is another at each start; empty if no line says so.

    Args:
        texts: of the program's files.
    """
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            new = _CHANCE.sub(_constant, line)
            if new != line:
                why = "this is another number at each start, so no two runs are alike."
                return replaced(f"{path}:{number}", line.strip(), new.strip(), why)
    return ""


def _constant(match: re.Match[str]) -> str:
    """A call that draws from what is never the same, with a constant instead."""
    name = (match[1] or match[2]).replace("torch.seed", "torch.manual_seed")
    return f"{name.replace('SystemRandom', 'Random')}(0)"
