"""Running a model as a pipeline without any front-end; the same model runs sequentially."""

from __future__ import annotations

import torch

from abele import build, get_target
from abele.capture import capture
from abele.pipeline import Cut, cut, pipelined
from abele.pipeline.assignment import STAGE
from abele.runtime.session import Session
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace import scopes
from abele.trace.module_state import ModuleState
from helpers.runs import flat


def at_stage(stage: int) -> None:
    """What forward traces from here on belongs to a stage."""
    scopes.mark(STAGE, stage)


def parts_of(
    module: torch.nn.Module, batch, config: StepConfig, rule: UpdateRule | None, stages: int
) -> tuple[Cut, tuple]:
    """The parts of a model, and the programs that are left."""
    captured = capture(
        lambda inputs: flat(module(*inputs)), module, batch, config, rule, origins=True
    )
    return cut(captured.programs[0], stages, config), captured.programs[1:]


def sessions(
    module: torch.nn.Module,
    batch,
    config: StepConfig,
    rule: UpdateRule | None,
    stages: int,
    target: str = "reference",
) -> tuple[Session, Session]:
    """A session that runs the model as a pipeline, and one that does not, in equal states."""
    captured = capture(
        lambda inputs: flat(module(*inputs)), module, batch, config, rule, origins=True
    )
    state = ModuleState.of(module)
    slots = {}
    for name, values in (rule.initial_state(state.params) if rule else {}).items():
        slots |= {f"{name}.{key}": value for key, value in values.items()}
    hyper = rule.hyper() if rule else {}
    arguments = (config, state.params, state.buffers)
    parts = cut(captured.programs[0], stages, config)
    chosen = get_target(target)
    piped, _ = build([*parts.programs, *captured.programs[1:]], config, target=chosen)
    plain, _ = build(captured.programs, config, target=chosen)
    others = {name: value.clone() for name, value in slots.items()}  # a session keeps what it gets
    return (
        Session(piped, *arguments, slots, hyper, plan=pipelined(parts)),
        Session(plain, *arguments, others, hyper),
    )
