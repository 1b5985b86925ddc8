"""Running a model as a pipeline without any front-end; the same model runs sequentially."""

import torch

from abele import build, get_target
from abele.pipeline import Cut, cut, pipelined
from abele.pipeline.cut import STAGE
from abele.runtime.session import Session
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace import scopes
from helpers.runs import captured, session_of


def at_stage(stage: int) -> None:
    """What forward traces from here on belongs to a stage."""
    scopes.mark(STAGE, stage)


def parts_of(
    module: torch.nn.Module, batch, config: StepConfig, rule: UpdateRule | None, stages: int
) -> tuple[Cut, tuple]:
    """The parts of a model, and the programs that are left."""
    programs = captured(module, batch, config, rule, origins=True).programs
    return cut(programs[0], stages, config), programs[1:]


def sessions(
    module: torch.nn.Module,
    batch,
    config: StepConfig,
    rule: UpdateRule | None,
    stages: int,
    target: str = "reference",
) -> tuple[Session, Session]:
    """A session that runs the model as a pipeline, and one that does not, in equal states."""
    programs = captured(module, batch, config, rule, origins=True).programs
    parts = cut(programs[0], stages, config)
    chosen = get_target(target)
    piped, _ = build([*parts.programs, *programs[1:]], config, target=chosen)
    plain, _ = build(programs, config, target=chosen)
    return (
        session_of(piped, module, config, rule, plan=pipelined(parts)),
        session_of(plain, module, config, rule),
    )
