"""From a model to a PEF, and from a PEF to a model on the device."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.capture import Captured
from abele.capture.sections import Output, Sectioned
from abele.compile import portable_executable
from abele.compile.build import build
from abele.compile.serialization import first_difference
from abele.errors import AbeleError, CorruptExecutable, SerializationError, TargetError
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.storage import atomic
from abele.storage.container import Container
from abele.storage.values import decode
from abele.trace.module_state import parameter_names
from sambaflow.errors import GraphError, PefDamagedError, PefMismatchError, UsageError
from sambaflow.samba._compile import optimizers as _optimizers
from sambaflow.samba._compile import pef as _pef
from sambaflow.samba._compile.sections import trace_model
from sambaflow.samba._session import arguments
from sambaflow.samba._session.loaded import LoadedGraph
from sambaflow.samba._session.messages import say, say_traced
from sambaflow.samba.sambatensor import SambaTensor


def compile_model(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    name: str | None,
    settings: Mapping[str, Any],
    pef_metadata: Mapping[str, Any] | None,
    loss_indices: Sequence[int] | None,
    *,
    inference: bool,
    fused_only: bool,
) -> Path:
    """Writes a compiled file; see ``SambaSession.compile``."""
    named, keywords = arguments.named_inputs(inputs)
    _check_indices(loss_indices)
    rule = _rule(model, optimizers, inference=inference)
    path = _destination(name or type(model).__name__.lower(), settings)
    log = path.with_suffix(".samba.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"Compiling {name or type(model).__name__}; the log goes to {log}")
    described = _pef.interface(model, named, keywords, rule, loss_indices)
    started = time.perf_counter()
    traced = _traced(model, named, keywords, rule, loss_indices, fused_only=fused_only)
    say_traced(traced, time.perf_counter() - started)
    with _graph_errors():
        config = StepConfig(training=rule is not None)
        made, record = build(traced.captured.programs, config, log_folder=path.parent)
        seconds = record.seconds.get("compile", 0.0)
        say(f"Compiled for target {record.target!r} in {seconds:.1f} s")
        about = _about(name, settings, pef_metadata, record.target, fused_only=fused_only)
        _pef.write(path, traced, made, described, about)
    text = "\n\n".join(program.text() for program in made.programs)
    atomic.write_text(log, text)
    size = path.stat().st_size / 2**20
    say(f"PEF file {path} created, {size:.2f} MiB, executable {record.executable[:12]}")
    say("Compilation succeeded.")
    return path


def load_model(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    pef: str | os.PathLike[str],
    loss_indices: Sequence[int] | None,
) -> LoadedGraph:
    """Loads a compiled file; see ``SambaSession.trace_graph``."""
    named, keywords = arguments.named_inputs(inputs)
    _check_indices(loss_indices)
    listed = _optimizers.as_list(optimizers)
    with _pef.opened(pef) as file:
        rule = _rule(model, optimizers, inference=not listed)
        described = _pef.interface(model, named, keywords, rule, loss_indices)
        _pef.check(file.path, file.content["interface"], described)
        return _load(file, model, named, keywords, rule, listed)


def _load(
    file: Container,
    model: torch.nn.Module,
    named: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    optimizers: Sequence[torch.optim.Optimizer],
) -> LoadedGraph:
    content = file.content
    fused_only = bool(content["about"]["fused_only"])
    losses = content["interface"]["loss_indices"]
    here = _traced(model, named, keywords, rule, losses, fused_only=fused_only)
    captured = _same_as_stored(file, content["executable"], here.captured)
    outputs = tuple(
        Output(
            shape=tuple(each["shape"]),
            dtype=decode(each["dtype"]),
            differentiable=each["differentiable"],
            loss=each["loss"],
        )
        for each in content["outputs"]
    )
    traced = Sectioned(captured=captured, outputs=outputs, starts=tuple(content["starts"]))
    config = StepConfig(training=rule is not None)
    made, record = portable_executable.restore(
        file, content["executable"], captured.programs, config
    )
    return LoadedGraph(model, named, optimizers, rule, traced, made, record, file.path)


def _check_indices(indices: Any) -> None:
    if indices is None:
        return
    needed = "a list of positions of outputs"
    arguments.check("loss_indices", indices, (list, tuple), needed)
    for index in indices:
        arguments.check("An item of loss_indices", index, int, "the position of an output")
    if len(set(indices)) < len(indices):
        raise UsageError(f"loss_indices {list(indices)} names an output twice. Name each once.")


def _rule(model: torch.nn.Module, optimizers: Any, *, inference: bool) -> UpdateRule | None:
    listed = _optimizers.as_list(optimizers)
    if inference and listed:
        raise UsageError(
            "An optimizer was given for inference. Pass None, or compile without --inference."
        )
    return _optimizers.to_rule(listed, parameter_names(model))


@contextlib.contextmanager
def _graph_errors() -> Iterator[None]:
    """The engine's errors as those of this package, but for a target that is not there."""
    try:
        yield
    except TargetError:
        raise
    except AbeleError as error:
        raise GraphError(str(error)) from error


def _traced(
    model: torch.nn.Module,
    named: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None,
    *,
    fused_only: bool,
) -> Sectioned:
    values = list(named.values())
    by_keyword = dict(zip(keywords, values, strict=True)) if keywords else {}
    positional = [] if keywords else values
    with _graph_errors():
        return trace_model(model, positional, by_keyword, rule, loss_indices, fused_only=fused_only)


def _same_as_stored(file: Container, packed: Mapping[str, Any], here: Captured) -> Captured:
    """What was captured here, if it is what the file holds.

    The file's programs are read only to say how they differ: that takes as long as capturing.
    """
    try:
        for name in file.names:
            file.read(name)  # checks it
        there = packed["fingerprints"]
        if there == {program.name: program.fingerprint() for program in here.programs}:
            return here
        if list(there) != list(here.by_name):
            raise PefMismatchError(
                f"{file.path} holds programs {', '.join(there)}, this model makes "
                f"{', '.join(here.by_name)}. Compile it again."
            )
        different = [
            first_difference(program, here.by_name[program.name])
            for program in portable_executable.captured_in(file, packed).programs
        ]
    except (CorruptExecutable, SerializationError) as error:
        raise PefDamagedError(
            f"{file.path} is damaged: {error} Compile the program again."
        ) from error
    raise PefMismatchError(
        f"{file.path} was compiled for another forward or other constants: "
        f"{next(filter(None, different))}. Run the model that was compiled, or compile this one."
    )


def _destination(name: str, settings: Mapping[str, Any]) -> Path:
    folder = settings.get("output_folder") or "out"
    arguments.check("output_folder", folder, (str, os.PathLike), "the path of a folder")
    folder = Path(folder)
    stamp = time.strftime("%Y%m%d_%H%M%S")
    base = settings.get("pef_name") or f"{name}_{stamp}_{os.getpid()}"
    base = str(base).removesuffix(_pef.SUFFIX)
    if base in ("", "..") or Path(base).name != base or "\0" in base:
        raise UsageError(
            f"pef_name {base!r} is not the name of a file. Choose the folder by output_folder."
        )
    return folder / base / f"{base}{_pef.SUFFIX}"


def _about(
    name: str | None,
    settings: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    target: str,
    *,
    fused_only: bool,
) -> dict[str, Any]:
    return {
        "name": name,
        "config": {k: _plain(v) for k, v in settings.items() if not callable(v)},
        "metadata": {k: _plain(v) for k, v in (metadata or {}).items()},
        "target": target,
        "fused_only": fused_only,
    }


def _plain(value: Any) -> Any:
    """A JSON value, or its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
