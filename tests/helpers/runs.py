"""Running a model through the engine without any front-end, and the same by plain PyTorch."""

import dataclasses
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from abele import build, get_target
from abele.capture import Captured, capture
from abele.collectives.torch_group import Collective
from abele.compilation.build import BuildRecord
from abele.compilation.cache import ExecutableCache
from abele.compilation.executable import Executable
from abele.ops import half_products
from abele.runtime.observers import Observer
from abele.runtime.session import Session
from abele.step.config import StepConfig
from abele.step.update_rules import Group, UpdateRule
from abele.targets import Target
from abele.trace.module_state import ModuleState

Batch = Sequence[torch.Tensor]

_ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
_RMSPROP = {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0}
_ADAGRAD = {"lr": 0.05, "lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0}
_RPROP_STEPS = {"step_size_min": 1e-6, "step_size_max": 50.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    "rmsprop": _RMSPROP | {"centered": False, "tf_variant": False},
    "adam": _ADAM | {"lr": 0.001, "decoupled": False},
    "lamb": _ADAM
    | {"eps": 1e-6, "weight_decay": 0.01, "bias_correction": True, "max_weight_norm": 10.0},
    "adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
    "adagrad": _ADAGRAD | {"initial_accumulator_value": 0.0},
    "adamax": _ADAM,
    "nadam": _ADAM | {"momentum_decay": 4e-3, "decoupled": False},
    "radam": _ADAM | {"decoupled": False},
    "asgd": {"lr": 0.05, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0.0},
    "rprop": {"lr": 0.01, "etaminus": 0.5, "etaplus": 1.2} | _RPROP_STEPS,
}


def resident_bytes() -> int:
    """Bytes of memory that this process has of the system."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def flat(outputs: Any) -> list[torch.Tensor]:
    """What a model returns, as a list."""
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def rule_for(
    module: torch.nn.Module,
    kind: str = "sgd",
    *,
    variable: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
    **values: Any,
) -> UpdateRule:
    """One group of all parameters; ``values`` override ``DEFAULTS``, ``settings`` the rule's."""
    names = tuple(ModuleState.of(module).params)
    group = Group(params=names, values=DEFAULTS[kind] | values, variable=frozenset(variable))
    return UpdateRule(kind=kind, groups=(group,), **(settings or {}))


def captured(
    module: torch.nn.Module,
    batch: Batch,
    config: StepConfig | None = None,
    rule: UpdateRule | None = None,
    **settings: Any,
) -> Captured:
    """Captures one micro-batch; trains by ``rule``, infers without; ``settings`` of ``capture``."""
    config = config or StepConfig(training=rule is not None)
    return capture(lambda inputs: flat(module(*inputs)), module, batch, config, rule, **settings)


def started(
    module: torch.nn.Module,
    micro_batch: Batch,
    rule: UpdateRule | None = None,
    config: StepConfig | None = None,
    *,
    target: Target | str = "reference",
    cache: ExecutableCache | None = None,
    collective: Collective | None = None,
) -> tuple[Session, BuildRecord]:
    """A session that has captured, built and copied ``module``."""
    config = config or StepConfig(training=rule is not None)
    programs = captured(module, micro_batch, config, rule).programs
    target = get_target(target) if isinstance(target, str) else target
    executable, record = build(programs, config, target=target, cache=cache)
    return session_of(executable, module, config, rule, collective=collective), record


def session_of(
    executable: Executable,
    module: torch.nn.Module,
    config: StepConfig,
    rule: UpdateRule | None,
    **settings: Any,
) -> Session:
    """A session with the state of ``module``; ``settings`` are the session's own."""
    state = ModuleState.of(module)
    slots = {} if rule is None else rule.initial_state(state.params)
    hyper = {} if rule is None else rule.hyper()
    arguments = (executable, config, state.params, state.buffers, slots, hyper)
    return Session(*arguments, **settings)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What training leaves: every output of every call, and the state after the last."""

    outputs: list[list[torch.Tensor]]
    params: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name."""
        named = {f"parameter {name}": value for name, value in self.params.items()}
        named |= {f"buffer {name}": value for name, value in self.buffers.items()}
        for call, outputs in enumerate(self.outputs):
            named |= {f"output {i} of call {call}": value for i, value in enumerate(outputs)}
        return named


class AfterMicroSteps(Observer):
    """Looks at something after each micro-step.

    Attributes:
        values: what was there, in order.
    """

    def __init__(self, look: Callable[[], Any]):
        self._look = look
        self.values: list[Any] = []

    def on_micro_step(self, step, begin, end):
        """Looks."""
        self.values.append(self._look())


def run(session: Session, batches: Sequence[Batch], seed: int = 3) -> Trained:
    """Steps through ``batches``; random numbers start at ``seed``."""
    torch.manual_seed(seed)
    outputs = []
    for batch in batches:
        results = session.step([tensor.to(session.device) for tensor in batch])
        outputs.append([value.cpu().clone() for value in results])
    return Trained(
        outputs,
        {name: value.cpu() for name, value in session.params.items()},
        {name: value.cpu() for name, value in session.buffers[0].items()},
    )


class HalfProductsInFloat32(TorchDispatchMode):
    """While open, torch computes half products and convolutions in float32 and rounds them once."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Compute one operator."""
        if func not in half_products.OPERATORS:
            return func(*args, **(kwargs or {}))
        return half_products.in_float32(func)(*args, **(kwargs or {}))


def run_eagerly(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    seed: int = 3,
) -> Trained:
    """The loop everybody writes; the loss is the last output."""
    torch.manual_seed(seed)
    outputs = []
    for batch in batches:
        optimizer.zero_grad()
        results = flat(module(*batch))
        results[-1].backward()
        optimizer.step()
        outputs.append([value.detach() for value in results])
    state = ModuleState.of(module)
    return Trained(outputs, dict(state.params), dict(state.buffers))


def assert_same_bits(actual: Trained, expected: Trained) -> None:
    """Every output, parameter and buffer is bitwise equal."""
    left, right = actual.tensors(), expected.tensors()
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def assert_close_by_norm(
    actual: Trained, expected: Trained, tolerance: float, without: Sequence[str] = ()
) -> None:
    """The difference of each tensor is at most ``tolerance`` times its norm."""
    left, right = actual.tensors(), expected.tensors()
    assert left.keys() == right.keys()
    for name in left.keys() - {f"parameter {name}" for name in without}:
        wide = torch.promote_types(right[name].dtype, torch.float64)  # of complex ones, too
        difference = torch.linalg.vector_norm(left[name].to(wide) - right[name].to(wide))
        norm = torch.linalg.vector_norm(right[name].to(wide))
        assert difference <= tolerance * norm, f"{name}: {difference / norm:.1e} of its norm"
