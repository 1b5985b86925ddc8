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
    """Write a file atomically; ``described`` is an ``interface``, ``said`` is for people."""
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
    """Read and check a compiled file."""
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
    """Raise an error that names everything in which the interface of a file and of a run differ."""
    old, new = _facts(there), _facts(here)
    if here["loss_indices"] is None:  # the run accepts those of the file
        del old["loss_indices"], new["loss_indices"]
    differences = [
        f"{name}: compiled as {old.get(name, 'missing')}, given {new.get(name, 'missing')}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    if differences:
        raise PefMismatchError(
            f"{path} was compiled for something else:\n  "
            + "\n  ".join(differences[:12])
            + "\nRun it with what it was compiled for, or compile this program again."
        )


def _facts(interface: Mapping[str, Any]) -> dict[str, str]:
    """Return what a file and a run have to agree on, as texts by name."""
    inputs = interface["inputs"]
    facts = {
        "inputs": ", ".join(each["name"] for each in inputs),
        "names of the inputs given by keyword": str(interface["keywords"]),
        "model.training": str(interface["training_mode"]),
        "parameters without gradient": str(interface["frozen"]),
        "loss_indices": str(interface["loss_indices"]),
        **_optimizer(interface["rule"]),
    }
    tensors = {f"input {each['name']}": (each["shape"], each["dtype"]) for each in inputs}
    for kind in ("parameter", "buffer"):
        tensors |= {f"{kind} {name}": value for name, value in interface[f"{kind}s"].items()}
    for name, (shape, dtype) in tensors.items():
        facts[name] = f"{shape} {decode(dtype)}"
    return facts


def _optimizer(data: Any) -> dict[str, str]:
    if data is None:
        return {"optimizer": "none, for inference"}
    rule = portable_executable.rule_from(data)
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
