"""The compiled file: programs, their code, and everything a run has to agree with.

A container of ``abele``: checked when read, nothing pickled. It holds native code: run only files
that you trust. Weights are not in it; they come from the model of the run.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.capture.sections import Sectioned
from abele.compile import portable_executable
from abele.compile.executable import Executable
from abele.errors import CorruptExecutable, SerializationError
from abele.step.update_rules import UpdateRule
from abele.storage import container
from abele.storage.container import Container
from abele.storage.values import decode, encode
from abele.trace.module_state import ModuleState
from abele.version import __version__
from sambaflow.errors import PefDamagedError, PefMismatchError
from sambaflow.samba.sambatensor import SambaTensor

KIND = "sambaflow PEF"
SUFFIX = ".pef"


def interface(
    module: Any,
    inputs: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None,
) -> dict[str, Any]:
    """Return the interface that compiling and running share, as JSON values."""
    state = ModuleState.of(module)
    described = {
        "inputs": [
            {"name": n, "shape": list(v.shape), "dtype": encode(v.dtype), "batch_dim": v.batch_dim}
            for n, v in inputs.items()
        ],
        "keywords": list(keywords),
        "parameters": _tensors(state.params),
        "frozen": sorted(set(state.params) - state.trainable),
        "buffers": _tensors(state.buffers),
        "training_mode": module.training,
        "rule": None if rule is None else portable_executable.rule_data(rule),
        "loss_indices": None if loss_indices is None else list(loss_indices),
    }
    return json.loads(json.dumps(described))


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [list(value.shape), encode(value.dtype)] for name, value in values.items()}


def write(
    path: Path,
    traced: Sectioned,
    made: Executable,
    described: Mapping[str, Any],
    said: Mapping[str, Any],
) -> None:
    """Write a file atomically.

    Args:
        path: where to; folders are made.
        traced: what was captured.
        made: what was built from it.
        described: what ``interface`` returned.
        said: JSON values for people: name, configuration, metadata.

    Raises:
        OSError: the folder is not writable, or the disk is full; nothing is left behind.
    """
    packed, members = portable_executable.pack(traced.captured, made)
    content = {
        "version": __version__,
        "interface": described,
        "outputs": [
            {**dataclasses.asdict(output), "dtype": encode(output.dtype)}
            for output in traced.outputs
        ],
        "starts": list(traced.starts),
        "executable": packed,
        "about": dict(said),
    }
    container.write(path, KIND, content, members)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Container]:
    """Read and check a compiled file.

    Raises:
        PefDamagedError: there is no such file, or it is cut, altered or of another kind.
        PefMismatchError: another release wrote it.
    """
    if not str(path):
        raise PefDamagedError(
            "No PEF file was given. Compile the program first and pass the file it names: "
            "PROGRAM run --pef FILE."
        )
    if "\0" in str(path):
        raise PefDamagedError(f"{path!r} cannot be the name of a PEF file. Pass the one it has.")
    try:
        with Container(Path(path), KIND) as file:
            version = file.content.get("version")
            if version != __version__:
                raise PefMismatchError(
                    f"{path} was compiled by release {version!r}, this is {__version__}. Compile "
                    "the program again."
                )
            yield file
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise PefDamagedError(
            f"There is no PEF file {path} ({error.strerror}). Compile the program first; the last "
            "lines of compile name the file."
        ) from error
    except (CorruptExecutable, SerializationError, KeyError, TypeError) as error:
        raise PefDamagedError(
            f"{path} is not a usable PEF: {error} Compile the program again."
        ) from error


def check(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise an error where the interface of a file differs from that of a run.

    Raises:
        PefMismatchError: names everything that differs.
    """
    differences = [
        *_named_tensors("parameter", there["parameters"], here["parameters"]),
        *_named_tensors("buffer", there["buffers"], here["buffers"]),
        *_inputs(there["inputs"], here["inputs"]),
        *_rule(there["rule"], here["rule"]),
    ]
    for name, text in (
        ("keywords", "names of the inputs given by keyword"),
        ("frozen", "parameters without gradient"),
        ("training_mode", "model.training"),
    ):
        if there[name] != here[name]:
            differences.append(f"{text}: compiled for {there[name]}, given {here[name]}")
    wanted = here["loss_indices"]
    if wanted is not None and wanted != there["loss_indices"]:
        differences.append(
            f"loss_indices: compiled for {there['loss_indices']}, given {wanted} (pass them to "
            "session.compile too)"
        )
    if differences:
        raise PefMismatchError(
            f"{path} was compiled for something else:\n  "
            + "\n  ".join(differences[:12])
            + "\nRun it with what it was compiled for, or compile this program again."
        )


def _spell(shape_and_dtype: Any) -> str:
    shape, dtype = shape_and_dtype
    return f"{shape} {decode(dtype)}"


def _named_tensors(kind: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in {**there, **here}:
        if name not in here:
            lines.append(f"{kind} {name}: compiled as {_spell(there[name])}, missing in the model")
        elif name not in there:
            lines.append(f"{kind} {name}: not compiled, {_spell(here[name])} in the model")
        elif there[name] != here[name]:
            lines.append(
                f"{kind} {name}: compiled as {_spell(there[name])}, given {_spell(here[name])}"
            )
    return lines


def _inputs(there: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> list[str]:
    old, new = [i["name"] for i in there], [i["name"] for i in here]
    if old != new:
        return [f"inputs: compiled as {', '.join(old)}, given {', '.join(new)}"]
    return [
        f"input {a['name']}: compiled as {_spell((a['shape'], a['dtype']))}, given "
        f"{_spell((b['shape'], b['dtype']))}"
        for a, b in zip(there, here, strict=True)
        if (a["shape"], a["dtype"]) != (b["shape"], b["dtype"])
    ]


def _rule(there: Any, here: Any) -> list[str]:
    if (there is None) != (here is None):
        with_it = {True: "for inference, without optimizer", False: "for training"}
        return [f"optimizer: compiled {with_it[there is None]}, given {with_it[here is None]}"]
    if there is None:
        return []
    old, new = portable_executable.rule_from(there), portable_executable.rule_from(here)
    if old.kind != new.kind or len(old.groups) != len(new.groups):
        kinds = [f"{rule.kind} with {len(rule.groups)} parameter groups" for rule in (old, new)]
        return [f"optimizer: compiled for {kinds[0]}, given {kinds[1]}"]
    lines = []
    if old.max_grad_norm != new.max_grad_norm:
        lines.append(f"max_grad_norm: compiled as {old.max_grad_norm}, given {new.max_grad_norm}")
    for index, (before, after) in enumerate(zip(old.groups, new.groups, strict=True)):
        if before.params != after.params:
            lines.append(f"optimizer group {index} holds other parameters than compiled")
        for name in sorted({*before.values, *after.values}):
            a, b = before.values.get(name), after.values.get(name)
            fixed = name not in before.variable or name not in after.variable
            if fixed and a != b:
                lines.append(f"optimizer group {index}: {name} was compiled as {a}, given {b}")
    return lines
