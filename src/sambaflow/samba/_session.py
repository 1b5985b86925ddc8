"""The session: compiles a model to a file, loads it, runs it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele import container, stored
from abele.building import build
from abele.config import StepConfig
from abele.errors import AbeleError, CorruptExecutable, SerializationError, TargetError
from abele.module_state import parameter_names
from abele.serialization import first_difference
from abele.update_rules import UpdateRule
from abele.values import decode
from sambaflow.errors import GraphError, PefDamagedError, PefMismatchError, UsageError
from sambaflow.logging import hint
from sambaflow.samba import _arguments, _optimizers, _pef
from sambaflow.samba._capture import Output, Traced, trace_model
from sambaflow.samba._loaded import LoadedGraph, Report
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sambatensor import SambaTensor

# Requests that a program may make and that have no meaning here.
_HINTS = frozenset(
    {
        "init_output_grads", "squeeze_bs_dim", "get_output_grads", "app_dir", "mapping",
        "dev_mode", "distlearn_config", "data_parallel_mode", "transfer_device", "config_dict",
        "verify_graph", "reduce_on_rdu", "num_tiles", "n_chips", "tensor_parallel",
    }
)  # fmt: skip


class SambaSession:
    """Compiles models and runs one of them.

    ``samba.session`` is the one that programs use; another one holds another model, for example the
    same network compiled for inference.

    Attributes:
        tracing: kept for programs that set it; the model itself always runs as plain PyTorch.
        profiler: times what programs mark.
        graph: the model that is loaded, or None.
    """

    def __init__(self):
        self.tracing = True
        self.profiler = Profiler()
        self.graph: LoadedGraph | None = None
        self._settings: dict[str, Any] = {}

    def setup(self, config: Any = None, **settings: Any) -> None:
        """Keeps ``config`` as the default of ``config_dict``; nothing else has to be set up."""
        found = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        self._settings = dict(found)
        for name in settings:
            hint(f"session.setup({name}=...)")

    # -- compiling -------------------------------------------------------------------------

    def compile(
        self,
        model: torch.nn.Module,
        inputs: Any,
        optimizers: Any = None,
        name: str | None = None,
        app_dir: str | None = None,
        config_dict: Mapping[str, Any] | None = None,
        pef_metadata: Mapping[str, Any] | None = None,
        metadata: Any = None,
        inference: bool = False,
        loss_indices: Sequence[int] | None = None,
        fused_only: bool = False,
        **hints: Any,
    ) -> str:
        """Captures forward, backward and update with dummy inputs and writes them, compiled.

        Args:
            model: as it is to run: training mode or not.
            inputs: named dummy tensors in the order of forward's parameters, or a dictionary by
                their names; shapes and dtypes count, values do not.
            optimizers: one, several (parameter groups), or None for inference.
            name: base of the file's name; default the model's class.
            app_dir: accepted, without effect.
            config_dict: ``vars(args)``; ``output_folder`` and ``pef_name`` say where the file goes,
                ``inference`` is read.
            pef_metadata: JSON values kept in the file; see ``pef_utils``.
            metadata: hints how to tile; accepted, without effect.
            inference: forward alone.
            loss_indices: the outputs from which backward starts; see ``trace_model``.
            fused_only: leave out the sections: compiles faster, runs with all sections only.
            hints: of the vendor's compiler; accepted, said once.

        Returns:
            The file: ``OUTPUT_FOLDER/PEF_NAME/PEF_NAME.pef``.

        Raises:
            UsageError: inputs or optimizers that cannot be used.
            GraphError: the model cannot be captured; names the line.
            OSError: the file cannot be written; nothing is left behind.
        """
        del app_dir
        settings = {**self._settings, **dict(config_dict or {})}
        _say_hints("session.compile", {**hints, "metadata": metadata})
        inference = inference or bool(settings.get("inference"))
        named, keywords = _arguments.named_inputs(inputs)
        rule = _rule(model, optimizers, inference=inference)
        path = _destination(name or type(model).__name__.lower(), settings)
        log = path.with_suffix(".samba.log")
        _say(f"Compiling {name or type(model).__name__}; the log goes to {log}")
        described = _pef.interface(model, named, keywords, rule, loss_indices)
        started = time.perf_counter()
        traced = _traced(model, named, keywords, rule, loss_indices, fused_only=fused_only)
        _say_traced(traced, time.perf_counter() - started)
        config = StepConfig(training=rule is not None)
        with _graph_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            made, record = build(traced.captured.programs, config, log_folder=path.parent)
        seconds = record.seconds.get("compile", 0.0)
        _say(f"Compiled for target {record.target!r} in {seconds:.1f} s")
        about = _about(name, settings, pef_metadata, record.target, fused_only=fused_only)
        with _graph_errors():
            _pef.write(path, traced, made, described, about)
        text = "\n\n".join(program.text() for program in made.programs)
        container.write_atomically(log, lambda file: file.write(text.encode()))
        _say(f"PEF file {path} created, {path.stat().st_size / 2**20:.2f} MiB, executable "
             f"{record.executable[:12]}")  # fmt: skip
        _say("Compilation succeeded.")
        return str(path)

    # -- loading ---------------------------------------------------------------------------

    def trace_graph(
        self,
        model: torch.nn.Module,
        inputs: Any,
        optim: Any = None,
        pef: str | os.PathLike[str] = "",
        loss_indices: Sequence[int] | None = None,
        **hints: Any,
    ) -> tuple[SambaTensor, ...]:
        """Loads a compiled file and moves the model's weights and optimizer state to the device.

        The model is captured again; its programs have to be those of the file.

        Args:
            model: as at compile; gives the initial weights.
            inputs: dummy tensors as at compile.
            optim: optimizers as at compile; give values and initial state.
            pef: the file.
            loss_indices: as at compile; None accepts what is in the file.
            hints: accepted, said once.

        Returns:
            The outputs, without data; also set as ``model.output_tensors``.

        Raises:
            PefDamagedError: the file is missing, cut or no PEF.
            PefMismatchError: it was compiled for something else; names what.
        """
        _say_hints("trace_graph", hints)
        named, keywords = _arguments.named_inputs(inputs)
        with _pef.opened(pef) as file:
            there = file.content["interface"]
            rule = _rule(model, optim, inference=optim is None)
            described = _pef.interface(model, named, keywords, rule, loss_indices)
            _pef.check(file.path, there, described)
            self.graph = self._load(file, model, named, keywords, rule, _optimizers.as_list(optim))
        model.output_tensors = self.graph.outputs  # type: ignore[assignment]
        _say_loaded(self.graph.report)
        return self.graph.outputs

    def _load(
        self,
        file: container.Container,
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
        try:
            captured = stored.captured_in(file, content["executable"])
        except (CorruptExecutable, SerializationError) as error:
            raise PefDamagedError(f"{file.path} is damaged: {error}") from error
        _same_programs(file.path, captured.by_name, here.captured.by_name)
        outputs = tuple(
            Output(
                shape=tuple(each["shape"]),
                dtype=decode(each["dtype"]),
                differentiable=each["differentiable"],
                loss=each["loss"],
            )
            for each in content["outputs"]
        )
        traced = Traced(captured=captured, outputs=outputs, losses=tuple(content["losses"]))
        config = StepConfig(training=rule is not None)
        made, record = stored.restore(file, content["executable"], captured.programs, config)
        return LoadedGraph(model, named, optimizers, rule, traced, made, record, file.path)

    # -- running ---------------------------------------------------------------------------

    def run(
        self,
        input_tensors: Any = None,
        output_tensors: Any = None,
        grad_of_outputs: Any = None,
        section_types: Iterable[str] | None = None,
        hyperparam_dict: Mapping[str, Any] | None = None,
        data_parallel: bool = False,
        reduce_on_rdu: bool = False,
        **hints: Any,
    ) -> tuple[SambaTensor, ...]:
        """Runs one batch: forward, backward and update, or some of these sections.

        Args:
            input_tensors: tensors named like the dummy inputs, or all without names in their
                order.
            output_tensors: which outputs to return; default all.
            grad_of_outputs: gradients from which backward starts, one per output that backward
                starts from or one per output (None for the others); default each output's
                ``sn_grad``, and for losses ones.
            section_types: of ``fwd``, ``bckwd`` and ``opt``, in either case; default all. Each fwd
                keeps what one later bckwd needs.
            hyperparam_dict: ``lr``, ``momentum``, ``weight_decay`` of this run: a number, or one
                per parameter group. Names that are missing have the optimizer's present value.
            data_parallel: gradients are averaged over all processes.
            reduce_on_rdu: accepted; the average is made by torch.distributed.
            hints: accepted, said once.

        Returns:
            The outputs, on the host, in the order of ``output_tensors``; for sections without
            fwd those of the last fwd.

        Raises:
            UsageError: nothing is loaded, or the sections cannot run.
            InputError: other names, shapes or dtypes than compiled.
        """
        _say_hints("session.run", hints)
        graph = self._loaded()
        given: Mapping[str, torch.Tensor] = {}
        if section_types is None or "fwd" in {str(name).lower() for name in section_types}:
            given = _arguments.of_run(graph.inputs, () if input_tensors is None else input_tensors)
        results = graph.run(
            given,
            section_types,
            grad_of_outputs,
            hyperparam_dict or {},
            data_parallel=data_parallel or reduce_on_rdu,
        )
        return _arguments.select(results, output_tensors)

    def _loaded(self) -> LoadedGraph:
        if self.graph is None:
            raise UsageError(
                "No program is loaded. Call samba.utils.trace_graph(model, inputs, optimizer, "
                "pef=...) first."
            )
        return self.graph

    def to_cpu(self, model: torch.nn.Module | None = None, optimizers: Any = None) -> None:
        """Copies the device's weights and buffers to a model, and optimizer state to optimizers.

        Raises:
            UsageError: nothing is loaded, or the model is another one.
        """
        self._loaded().to_cpu(model, _optimizers.as_list(optimizers))

    def to_device(self, *unused: Any, **also_unused: Any) -> None:
        """Copies weights, buffers and optimizer state of the traced model to the device."""
        del unused, also_unused
        self._loaded().to_device()

    @property
    def report(self) -> Report:
        """Which executable runs, and on which target."""
        return self._loaded().report

    # -- what programs look up ---------------------------------------------------------------

    @property
    def optim_dict(self) -> dict[str, torch.Tensor]:
        """The optimizer state on the device, by name."""
        return {} if self.graph is None else dict(self.graph.device.optimizer_state)

    @property
    def buffer_dict(self) -> dict[str, torch.Tensor]:
        """The buffers on the device, by name."""
        return {} if self.graph is None else dict(self.graph.device.buffers)

    def get_tensors_by_name(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Inputs, outputs and parameters by ``sn_name``.

        Raises:
            UsageError: nothing is loaded, or a name does not exist.
        """
        known = self._loaded().tensors()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"There are no tensors named {', '.join(unknown)}. Names are "
                f"{', '.join(list(known)[:20])}."
            )
        return [known[name] for name in names]

    def _traced_tensors(self) -> dict[str, torch.Tensor]:
        return self._loaded().tensors()

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Dropout rates that a run may change: none, they are part of the program."""
        return []

    def enable_pinned_memory(self) -> None:
        """Accepted; inputs are moved as they are."""
        hint("session.enable_pinned_memory()", "inputs are moved as they are")

    def start_runtime_profile(self) -> None:
        """Begins to keep the events of ``profiler``."""
        self.profiler.clear()

    def end_runtime_profile(self, file: str | os.PathLike[str]) -> None:
        """Writes the events since the beginning as JSON that trace viewers read."""
        self.profiler.save(file)

    start_samba_profile = start_runtime_profile
    end_samba_profile = end_runtime_profile

    @contextlib.contextmanager
    def _add_directives(self, *directives: Any, **more: Any) -> Iterator[None]:
        del directives, more
        hint("session._add_directives(...)")
        yield

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith(("load_dynamic", "set_dynamic")):
            hint(f"session.{name}(...)", "shapes are static")
            return lambda *args, **kwargs: None
        raise AttributeError(
            f"session has no {name!r}. See docs/sambaflow.md for what this package offers."
        )


def _say(text: str) -> None:
    print(f"[sambaflow] {text}", flush=True)


def _say_hints(where: str, hints: Mapping[str, Any]) -> None:
    for name, value in hints.items():
        if name in _HINTS or name == "metadata":
            if value and name not in ("config_dict", "app_dir"):
                hint(f"{where}({name}=...)")
        else:
            hint(f"{where}({name}=...)", "this package knows no such option")


def _rule(model: torch.nn.Module, optimizers: Any, *, inference: bool) -> UpdateRule | None:
    found = _optimizers.as_list(optimizers)
    if inference and found:
        raise UsageError(
            "An optimizer was given for inference. Pass None, or compile without --inference."
        )
    return _optimizers.to_rule(found, parameter_names(model))


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
) -> Traced:
    values = list(named.values())
    by_keyword = dict(zip(keywords, values, strict=True)) if keywords else {}
    positional = [] if keywords else values
    with _graph_errors():
        return trace_model(model, positional, by_keyword, rule, loss_indices, fused_only=fused_only)


def _same_programs(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if list(there) != list(here):
        raise PefMismatchError(
            f"{path} holds programs {', '.join(there)}, this model makes {', '.join(here)}. "
            "Compile it again."
        )
    for name, program in there.items():
        different = first_difference(program, here[name])
        if different:
            raise PefMismatchError(
                f"{path} was compiled for another forward or other constants: {different}. Run the "
                "model that was compiled, or compile this one."
            )


def _destination(name: str, settings: Mapping[str, Any]) -> Path:
    folder = Path(settings.get("output_folder") or "out")
    stamp = time.strftime("%Y%m%d_%H%M%S")
    base = settings.get("pef_name") or f"{name}_{stamp}_{os.getpid()}"
    base = str(base).removesuffix(_pef.SUFFIX)
    if not base or Path(base).name != base:
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


def _say_traced(traced: Traced, seconds: float) -> None:
    programs = ", ".join(
        f"{p.name} ({len(p.graph.graph.nodes)} nodes)" for p in traced.captured.programs
    )
    _say(f"Captured in {seconds:.1f} s: {programs}")
    if traced.losses:
        kinds = [traced.outputs[i].loss for i in traced.losses]
        origin = "with gradient one" if any(kinds) else "with gradients of the caller"
        starts = ", ".join(f"output_{i}" for i in traced.losses)
        _say(f"Backward starts from {starts} {origin}")


def _say_loaded(report: Report) -> None:
    reason = f" ({report.fallback})" if report.fallback else ""
    code = {"file": "the file's own code"}.get(report.origin, report.origin)
    _say(
        f"PEF {report.pef} runs on target {report.target!r}{reason}, device {report.device}, "
        f"{code}; executable {report.executable[:12]}"
    )
