"""The session: compiles a model to a file, loads and runs it."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sambaflow.errors import UsageError
from sambaflow.logging import hint
from sambaflow.samba import _arguments as arguments
from sambaflow.samba import _optimizers
from sambaflow.samba._compiling import compile_model
from sambaflow.samba._loaded import LoadedGraph, Report, load_model, say_loaded
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sambatensor import SambaTensor


class SambaSession:
    """A session that compiles models to PEF files, loads one model and runs it.

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
        """Store ``config`` as the session's default of ``config_dict``."""
        settings_of_config = (
            config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        )
        self._settings = dict(settings_of_config)
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
        **hints: Any,
    ) -> str:
        """Capture and compile forward, backward and update with dummy inputs.

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
            hints: of the vendor's compiler; accepted, said once.

        Returns:
            The file: ``OUTPUT_FOLDER/PEF_NAME/PEF_NAME.pef``.

        Raises:
            UsageError: a model, inputs, optimizers or settings that cannot be used.
            GraphError: the model cannot be captured; names the line.
            OSError: the file cannot be written; nothing is left behind.
        """
        del app_dir
        arguments.check_model(model)
        optional = (Mapping, type(None))
        arguments.check("config_dict", config_dict, optional, "a dictionary, such as vars(args)")
        arguments.check("pef_metadata", pef_metadata, optional, "a dictionary of JSON values")
        settings = {**self._settings, **(config_dict or {})}
        _say_hints("session.compile", {**hints, "metadata": metadata})
        path = compile_model(
            model,
            inputs,
            optimizers,
            name,
            settings,
            pef_metadata,
            loss_indices,
            inference=inference or bool(settings.get("inference")),
        )
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
        """Load a compiled file; move weights and optimizer state to the device.

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
            UsageError: a model, inputs or optimizers that cannot be used.
            PefDamagedError: the file is missing, cut or no PEF.
            PefMismatchError: it was compiled for something else; names what.
        """
        arguments.check_model(model)
        _say_hints("trace_graph", hints)
        self.graph = load_model(model, inputs, optim, pef, loss_indices)
        model.output_tensors = self.graph.outputs  # type: ignore[assignment]
        say_loaded(self.graph.report)
        return self.graph.outputs

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
        """Run forward, backward and update, or some of these sections, on a batch.

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
        inputs: Mapping[str, torch.Tensor] = {}
        needed = "a list of section types: fwd, bckwd, opt"
        arguments.check("section_types", section_types, (Iterable, type(None)), needed)
        if section_types is not None:
            names = [section_types] if isinstance(section_types, str) else section_types
            section_types = [str(name) for name in names]
        if section_types is None or "fwd" in {name.lower() for name in section_types}:
            inputs = arguments.of_run(graph.inputs, () if input_tensors is None else input_tensors)
        results = graph.run(
            inputs,
            section_types,
            grad_of_outputs,
            {} if hyperparam_dict is None else hyperparam_dict,
            data_parallel=data_parallel or reduce_on_rdu,
        )
        return arguments.select(results, output_tensors)

    def _loaded(self) -> LoadedGraph:
        if self.graph is None:
            raise UsageError(
                "No program is loaded. Call samba.utils.trace_graph(model, inputs, optimizer, "
                "pef=...) first."
            )
        return self.graph

    def to_cpu(self, model: torch.nn.Module | None = None, optimizers: Any = None) -> None:
        """Copy the device's weights, buffers and optimizer state to the host.

        Raises:
            UsageError: nothing is loaded, or the model is another one.
        """
        if model is not None:
            arguments.check_model(model)
        self._loaded().to_cpu(model, _optimizers.as_list(optimizers))

    def to_device(self, *unused: Any, **also_unused: Any) -> None:
        """Copy weights, buffers and optimizer state of the traced model to the device."""
        del unused, also_unused
        self._loaded().to_device()

    @property
    def report(self) -> Report:
        """A sentence that names the executable and its target."""
        return self._loaded().report

    # -- what programs look up ---------------------------------------------------------------

    @property
    def optim_dict(self) -> dict[str, torch.Tensor]:
        """The optimizer state on the device, by name."""
        return {} if self.graph is None else dict(self.graph.session.optimizer_state)

    @property
    def buffer_dict(self) -> dict[str, torch.Tensor]:
        """The buffers on the device, by name."""
        return {} if self.graph is None else dict(self.graph.session.buffers[0])

    def get_tensors_by_name(self, names: Sequence[str]) -> list[torch.Tensor]:
        """Return inputs, outputs and parameters by ``sn_name``.

        Raises:
            UsageError: nothing is loaded, or a name does not exist.
        """
        known = self._loaded().tensors()
        arguments.check("names", names, (list, tuple), "a list of names of tensors")
        unknown = [str(name) for name in names if name not in known]
        if unknown:
            raise UsageError(
                f"There are no tensors named {', '.join(unknown)}. Names are "
                f"{', '.join(list(known)[:20])}."
            )
        return [known[name] for name in names]

    def _traced_tensors(self) -> dict[str, torch.Tensor]:
        return self._loaded().tensors()

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Return no names: dropout rates are part of the program and cannot change per run."""
        return []

    def enable_pinned_memory(self) -> None:
        """Accept the call without effect: inputs are moved as they are."""
        hint("session.enable_pinned_memory()", "inputs are moved as they are")

    def start_runtime_profile(self) -> None:
        """Start recording the events of ``profiler``."""
        self.profiler.clear()

    def end_runtime_profile(self, file: str | os.PathLike[str]) -> None:
        """Write all recorded events as JSON for trace viewers."""
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
            f"session has no {name!r}. Run `abele docs sambaflow` for what this package offers."
        )


def _say_hints(where: str, hints: Mapping[str, Any]) -> None:
    for name, value in hints.items():
        if value and name not in ("app_dir", "config_dict"):  # programs pass these to every call
            hint(f"{where}({name}=...)", "it steers hardware that is not here, or is not known")


#: The session of this process.
session = SambaSession()
