"""A compiled model on the device: loading of its file, its state, and execution of its sections."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from abele.capture import Captured
from abele.capture.sections import (
    BACKWARD,
    FORWARD,
    STEP,
    UPDATE,
    Output,
    Sectioned,
    gradient_of,
    gradient_of_output,
)
from abele.compilation import portable_executable
from abele.compilation.build import BuildRecord
from abele.compilation.executable import Executable
from abele.compilation.serialization import first_difference
from abele.errors import CorruptExecutable, SerializationError
from abele.runtime.device_registry import Attachment
from abele.runtime.session import SectionSession
from abele.step import optimizers as torch_optimizers
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.storage.container import Container
from abele.storage.values import decode
from abele.trace.module_state import ModuleState, parameter_names, plain
from sambaflow.errors import InputError, PefDamagedError, PefMismatchError, UsageError
from sambaflow.logging import say
from sambaflow.samba import _arguments as arguments
from sambaflow.samba import _optimizers, _pef
from sambaflow.samba._compiling import check_indices, rule_of, traced_with
from sambaflow.samba.nn.parameter import SambaParameter, sn_name_of
from sambaflow.samba.sambatensor import SambaTensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The loaded PEF file: its target, device, programs, and the hash of the executable.

    Attributes:
        origin: ``file`` if the file's own code runs, ``compiled here`` if it does not fit this
            machine, ``interpreted`` if the target runs programs without compiling.
        seconds: how long loading took, by part.
        fallback: why a better target could not be used, if so.
    """

    pef: str
    target: str
    device: str
    executable: str
    origin: str
    programs: tuple[str, ...]
    seconds: Mapping[str, float]
    fallback: str | None


def say_loaded(report: Report) -> None:
    reason = f" ({report.fallback})" if report.fallback else ""
    code = {"file": "the file's own code"}.get(report.origin, report.origin)
    say(
        f"PEF {report.pef} runs on target {report.target!r}{reason}, device {report.device}, "
        f"{code}; executable {report.executable[:12]}"
    )


SECTIONS = ("fwd", "bckwd", "opt")


class LoadedGraph:
    """A compiled model with its state on the device, initialized from module and optimizers."""

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Mapping[str, SambaTensor],
        optimizers: Sequence[torch.optim.Optimizer],
        rule: UpdateRule | None,
        traced: Sectioned,
        made: Executable,
        record: BuildRecord,
        path: Path,
    ):
        self.module, self.inputs, self.rule, self.traced = module, dict(inputs), rule, traced
        self.optimizers = list(optimizers)
        self.record, self.path = record, path
        self.names = parameter_names(module)
        state = ModuleState.of(module)
        initial = {} if rule is None else rule.initial_state(state.params)
        hyper = {} if rule is None else rule.hyper()
        config = StepConfig(training=rule is not None)
        self.session = SectionSession(made, config, state.params, state.buffers, initial, hyper)
        Attachment(self.session, made.target.name, self.session.device)
        self.outputs = tuple(
            SambaTensor(shape=output.shape, dtype=output.dtype, name=f"output_{index}")
            for index, output in enumerate(traced.outputs)
        )
        self._slots = self._output_slots()
        self._for_backward: dict[str, torch.Tensor] | None = None
        self._for_update: dict[str, torch.Tensor] = {}
        self._grads: dict[str, torch.Tensor] = {}
        self._ones: dict[int, torch.Tensor] = {}
        self._last: dict[int, torch.Tensor] = {}
        self.to_device()
        for each in self.optimizers:
            # The device steps, unseen by torch's schedulers, which would warn of a missing step().
            each._opt_called = True  # type: ignore[attr-defined]
        for parameter in module.parameters():
            # A second session that only evaluates does not know gradients.
            if isinstance(parameter, SambaParameter) and (rule or parameter._sn_graph is None):
                parameter._sn_graph = self

    def _output_slots(self) -> dict[int, str]:
        computed = [i for i in range(len(self.outputs)) if i not in self.traced.captured.constants]
        return {index: f"output{slot}" for slot, index in enumerate(computed)}

    # -- state -------------------------------------------------------------------------------

    def to_device(self) -> None:
        """Copy parameters, buffers and optimizer state from the host."""
        for each in self.optimizers:
            assert self.rule is not None  # it comes from them
            problem = torch_optimizers.problem(each, self.rule, self.names)
            if problem is not None:
                raise UsageError(
                    f"The state of optimizer {type(each).__name__} cannot be taken over: {problem}."
                    " Load the state that belongs to this model and optimizer."
                )
        state, session = ModuleState.of(self.module), self.session
        session.write_params(_among(session.params, state.params))
        session.write_buffers(_among(session.buffers[0], state.buffers))
        host = torch_optimizers.host_state(self.optimizers, self.names)
        session.write_optimizer_state(_among(session.optimizer_state, host))

    def to_cpu(
        self,
        module: torch.nn.Module | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        """Copy parameters, buffers and optimizer state to the host."""
        target = ModuleState.of(module or self.module)
        state = {**self.session.params, **self.session.buffers[0]}
        with torch.no_grad():
            for name, value in {**target.params, **target.buffers}.items():
                if name not in state or state[name].shape != value.shape:
                    raise UsageError(
                        f"to_cpu was given a model with {name} {list(value.shape)}, which the "
                        "loaded program does not have. Pass the model that was traced."
                    )
                value.copy_(state[name])
        if optimizers:
            names = self.names if module is None else parameter_names(module)
            torch_optimizers.to_host(optimizers, names, self.session.read_updated_state())

    def parameter(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the device's values of a parameter of the module."""
        return self.session.params[self.names[id(parameter)]].clone()

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the last run's gradient of a parameter of the module."""
        return self._grads.get(gradient_of(self.names.get(id(parameter), "")))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return inputs, outputs and parameters by name."""
        by_name: dict[str, torch.Tensor] = {**self.inputs}
        by_name |= {output.sn_name: output for output in self.outputs}
        for name, value in self.session.params.items():
            by_name[sn_name_of(name)] = SambaTensor(value, name=sn_name_of(name))
        return by_name

    @property
    def report(self) -> Report:
        """A sentence that names the executable and its target."""
        return Report(
            pef=str(self.path),
            target=self.record.target,
            device=str(self.session.device),
            executable=self.record.executable,
            origin=self._origin(),
            programs=tuple(self.session.programs),
            seconds=dict(self.record.seconds),
            fallback=self.record.fallback,
        )

    def _origin(self) -> str:
        compiled = self.session.executable.compiled.values()
        if not any(each.payload for each in compiled):
            return "interpreted"
        return "file" if self.record.cache == "hit" else "compiled here"

    # -- running -----------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, torch.Tensor],
        sections: Iterable[str] | None,
        gradients: Any,
        hyper: Mapping[str, Any],
        *,
        data_parallel: bool = False,
    ) -> tuple[SambaTensor, ...]:
        """Run forward, backward or update on a batch; see ``SambaSession.run``."""
        wanted = self._wanted(sections)
        self._set_hyper(hyper)
        seeds: dict[str, torch.Tensor] = {}
        if "bckwd" in wanted:
            seeds = self._seeds(gradients)
        elif gradients is not None:
            raise UsageError(
                f"grad_of_outputs was given for sections {wanted}, which do not run backward. Add "
                "'bckwd', or leave it out."
            )
        self._grads = {} if "bckwd" in wanted else self._grads
        if len(wanted) == 3 and STEP in self.session.programs and not data_parallel:
            return self._results(self._step(inputs, seeds))
        if "fwd" in wanted:
            self._forward(inputs, keep=self.rule is not None)
        if "bckwd" in wanted:
            self._backward(seeds, data_parallel=data_parallel)
        if "opt" in wanted:
            self._update()
        return self._results(self._last)

    def _wanted(self, sections: Iterable[str] | None) -> list[str]:
        lower = list(SECTIONS) if sections is None else [name.lower() for name in sections]
        if self.rule is None:
            lower = ["fwd"] if sections is None else lower
            if lower != ["fwd"]:
                raise UsageError(
                    f"{self.path} was compiled for inference and has section fwd alone, asked for "
                    f"{lower}. Compile with an optimizer and without --inference to train."
                )
        unknown = [name for name in lower if name not in SECTIONS]
        wanted = [name for name in SECTIONS if name in lower]
        if unknown or not wanted or wanted == ["fwd", "opt"]:
            raise UsageError(
                f"section_types {lower} cannot run. Sections are fwd, bckwd and opt, and opt needs "
                "the gradients of bckwd."
            )
        return wanted

    def _step(
        self, inputs: Mapping[str, torch.Tensor], seeds: Mapping[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        self._for_backward, self._for_update = None, {}
        outputs = self.session.run(STEP, {**self._by_slot(inputs), **seeds})
        self._grads = self._gradients(outputs)
        self._last = {i: outputs[slot] for i, slot in self._slots.items()}
        return self._last

    def _forward(self, inputs: Mapping[str, torch.Tensor], *, keep: bool) -> None:
        # Memory of the last batch goes before that of this one comes.
        self._for_backward, self._for_update = None, {}
        by_slot = self._by_slot(inputs)
        outputs = self.session.run(FORWARD, by_slot)
        self._last = {i: outputs[slot] for i, slot in self._slots.items()}
        if keep:
            values = {**by_slot, **outputs}
            self._for_backward = self.session.taken_by(BACKWARD, values)
            self._for_update = self.session.taken_by(UPDATE, values)

    def _backward(self, seeds: Mapping[str, torch.Tensor], *, data_parallel: bool) -> None:
        if self._for_backward is None:
            raise UsageError(
                "Section bckwd was asked for, but no fwd ran before it with this program (each fwd "
                "serves one bckwd). Run section fwd first."
            )
        values, self._for_backward = {**self._for_backward, **seeds}, None
        outputs = self.session.run(BACKWARD, values)
        self._grads = self._gradients(outputs)
        self._for_update |= self.session.taken_by(UPDATE, outputs)
        if data_parallel:
            average(self._grads.values())

    def _update(self) -> None:
        if not self._grads:
            raise UsageError(
                "Section opt was asked for, but there are no gradients. Run section bckwd first."
            )
        self.session.run(UPDATE, {**self._for_update, **self._grads})

    def _gradients(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        names = [gradient_of(parameter) for parameter in self.traced.captured.updated]
        return {name: outputs[name] for name in names}

    def _by_slot(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {f"input{i}": plain(inputs[name]) for i, name in enumerate(self.inputs)}

    def _seeds(self, gradients: Any) -> dict[str, torch.Tensor]:
        """Return the output gradients with which backward starts."""
        from_host = self._given_gradients(gradients)
        seeds = {}
        for index in self.traced.starts:
            value = from_host.get(index, self.outputs[index].sn_grad)
            output = self.traced.outputs[index]
            if value is None and not output.loss and self.traced_hosts:
                raise UsageError(
                    f"Output {self.outputs[index].sn_name} {list(output.shape)} is neither scalar "
                    "nor the result of a criterion, so its gradient has to come from the host. "
                    "Pass grad_of_outputs or set sn_grad, or compile with loss_indices."
                )
            if value is None:
                value = self._one(index)
            if tuple(value.shape) != output.shape:
                raise InputError(
                    f"The gradient of {self.outputs[index].sn_name} has shape "
                    f"{list(value.shape)}, the output {list(output.shape)}. Pass one gradient per "
                    "output, of its shape."
                )
            seeds[gradient_of_output(index)] = plain(value).to(output.dtype)
        return seeds

    @property
    def traced_hosts(self) -> bool:
        """True if the host has to provide the output gradients."""
        return STEP not in {program.name for program in self.traced.captured.programs}

    def _given_gradients(self, gradients: Any) -> dict[int, torch.Tensor]:
        if gradients is None:
            return {}
        needed = "a tensor, or a tuple or list of tensors"
        arguments.check(
            "grad_of_outputs", gradients, (torch.Tensor, list, tuple), needed, InputError
        )
        items = [gradients] if isinstance(gradients, torch.Tensor) else list(gradients)
        arguments.check_tensors("grad_of_outputs", items)
        starts = self.traced.starts
        if len(items) == len(starts):
            positions = starts
        elif len(items) == len(self.outputs):
            positions = tuple(range(len(self.outputs)))
        else:
            raise InputError(
                f"grad_of_outputs has {len(items)} tensors; backward starts from {len(starts)} "
                f"outputs of {len(self.outputs)}. Pass one for each of either."
            )
        by_output = {i: item for i, item in zip(positions, items, strict=True) if item is not None}
        extra = [self.outputs[i].sn_name for i in by_output if i not in starts]
        if extra:
            raise InputError(
                f"grad_of_outputs has gradients for {', '.join(extra)}, from which backward does "
                f"not start. Pass None there, or compile with loss_indices."
            )
        return by_output

    def _one(self, index: int) -> torch.Tensor:
        if index not in self._ones:
            output = self.traced.outputs[index]
            self._ones[index] = torch.ones(output.shape, dtype=output.dtype).to(self.session.device)
        return self._ones[index]

    def _set_hyper(self, wanted: Mapping[str, Any]) -> None:
        if self.rule is None:
            return
        values = _optimizers.present_values(self.optimizers, self.rule)
        for name, value in (values | _optimizers.hyper_values(self.rule, wanted)).items():
            self.session.set_hyper(name, value)

    def _results(self, computed: Mapping[int, torch.Tensor]) -> tuple[SambaTensor, ...]:
        results = []
        for index, output in enumerate(self.outputs):
            value = computed.get(index)
            if value is None:
                value = self.traced.captured.constants[index].clone()
            result = SambaTensor(value.to("cpu"), name=output.sn_name)
            result._origin = output
            results.append(result)
        return tuple(results)


def _among(
    known: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Select tensors by name: those that the device stores."""
    return {name: value.detach() for name, value in values.items() if name in known}


def load_model(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    pef: str | os.PathLike[str],
    loss_indices: Sequence[int] | None,
) -> LoadedGraph:
    """Load a compiled PEF file; see ``SambaSession.trace_graph``."""
    named, keywords = arguments.named_inputs(inputs)
    check_indices(loss_indices)
    listed = _optimizers.as_list(optimizers)
    with _pef.opened(pef) as file:
        rule = rule_of(model, optimizers, inference=not listed)
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
    losses = content["loss_indices"]
    here = traced_with(model, named, keywords, rule, losses)
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


def _same_as_stored(file: Container, packed: Mapping[str, Any], here: Captured) -> Captured:
    """Return this process's capture; raise if the PEF file holds another program.

    The file's programs are read only to say how they differ: that takes as long as capturing.
    """
    try:
        for name in file.names:
            file.read(name)  # checks it
        if packed["digests"] == {each.name: each.fingerprint() for each in here.programs}:
            return here
        if packed["programs"] != list(here.by_name):
            raise PefMismatchError(
                f"{file.path} holds programs {', '.join(packed['programs'])}, this model makes "
                f"{', '.join(here.by_name)}. Compile it again."
            )
        stored = portable_executable.captured_in(file, packed).programs
        differences = [first_difference(each, here.by_name[each.name]) for each in stored]
    except (CorruptExecutable, SerializationError) as error:
        raise PefDamagedError(
            f"{file.path} is damaged: {error} Compile the program again."
        ) from error
    raise PefMismatchError(
        f"{file.path} was compiled for another forward or other constants: "
        f"{next(filter(None, differences), 'their digests')}. Run the model that was compiled, or "
        "compile this one."
    )


# -- several processes ------------------------------------------------------------------------

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), default)


def world_size() -> int:
    """Return the number of processes, from torch.distributed or the launcher."""
    return dist.get_world_size() if _running() else _number(_SIZES, 1)


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if _running() else _number(_RANKS, 0)


def average(gradients: Iterable[torch.Tensor]) -> None:
    """Average gradients over all processes in place.

    Raises:
        UsageError: there are several processes and nothing connects them.
    """
    size = world_size()
    if size == 1:
        return
    if not _running():
        raise UsageError(
            f"data_parallel was asked for with {size} processes, but torch.distributed is not "
            'initialized. Call torch.distributed.init_process_group("gloo") first.'
        )
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(size)
