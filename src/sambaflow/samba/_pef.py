"""The compiled file (PEF): programs, their code, and the interface that a run has to match.

A container of ``abele``: checked when read, nothing pickled. It holds native code: run only files
that you trust. Weights are not in it; they come from the model of the run.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.capture.sections import Sectioned
from abele.compilation import portable_executable
from abele.compilation.executable import Executable
from abele.errors import CorruptExecutable, SerializationError
from abele.step.update_rules import UpdateRule
from abele.storage import container
from abele.storage.container import Container
from abele.storage.values import encode
from abele.trace.module_state import ModuleState
from abele.version import __version__
from sambaflow.errors import PefDamagedError, PefMismatchError
from sambaflow.samba.sambatensor import SambaTensor

KIND = "sambaflow PEF"
SUFFIX = ".pef"
_LOSSES = "loss_indices"


def interface(
    module: Any,
    inputs: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None,
) -> dict[str, str]:
    """Return the interface of a program (inputs, parameters, optimizer) as texts by name."""
    state = ModuleState.of(module)
    tensors: dict[str, Any] = {f"input {name}": value for name, value in inputs.items()}
    tensors |= {f"parameter {name}": value for name, value in state.params.items()}
    tensors |= {f"buffer {name}": value for name, value in state.buffers.items()}
    return {
        "inputs": ", ".join(inputs),
        "names of the inputs given by keyword": str(list(keywords)),
        "model.training": str(module.training),
        "parameters without gradient": str(sorted(set(state.params) - state.trainable)),
        _LOSSES: str(None if loss_indices is None else list(loss_indices)),
        **_optimizer(rule),
        **{name: f"{list(value.shape)} {value.dtype}" for name, value in tensors.items()},
    }


def write(
    path: Path,
    traced: Sectioned,
    made: Executable,
    described: Mapping[str, str],
    inputs: Mapping[str, SambaTensor],
    loss_indices: Sequence[int] | None,
    said: Mapping[str, Any],
) -> None:
    """Write a PEF file atomically; ``described`` is an ``interface``, ``said`` is for people."""
    packed, members = portable_executable.pack(traced.captured, made)
    content = {
        "version": __version__,
        "interface": dict(described),
        "inputs": [
            {"name": n, "shape": list(v.shape), "dtype": encode(v.dtype), "batch_dim": v.batch_dim}
            for n, v in inputs.items()
        ],
        "loss_indices": None if loss_indices is None else list(loss_indices),
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
    """Read and check a PEF file."""
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


def check(path: Path, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise an error that lists all differences between the interfaces of a PEF file and a run."""
    differences = [
        f"{name}: compiled as {there.get(name, 'missing')}, given {here.get(name, 'missing')}"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
        # A run that names no losses accepts those of the file.
        and not (name == _LOSSES and here[name] == "None")
    ]
    if differences:
        raise PefMismatchError(
            f"{path} was compiled for something else:\n  "
            + "\n  ".join(differences[:12])
            + "\nRun it with what it was compiled for, or compile this program again."
        )


def _optimizer(rule: UpdateRule | None) -> dict[str, str]:
    if rule is None:
        return {"optimizer": "none, for inference"}
    facts = {
        "optimizer": f"{rule.kind} with {len(rule.groups)} parameter groups",
        "max_grad_norm": str(rule.max_grad_norm),
    }
    for index, group in enumerate(rule.groups):
        facts[f"parameters of optimizer group {index}"] = ", ".join(group.params)
        for name, value in group.values.items():
            shown = "set at each run" if name in group.variable else str(value)
            facts[f"{name} of optimizer group {index}"] = shown
    return facts
