"""Times of stages, measured, and stages that are balanced by them."""

import dataclasses

from abele.fit.answers import Say, silent
from abele.pipeline import PipelineRunner
from abele.stage import Plan
from abele.stage.chain import Times
from poptorch._compiled.model import CompiledModel
from poptorch._error import error
from poptorch._fit.trial import Trial
from poptorch._stage import blocks, reading

#: Compiling stages takes long, and the second division is mostly the last.
_ROUNDS = 3
_CALLS = 3


def balanced(plan: Plan, trial: Trial, say: Say = silent) -> Plan:
    """Run the stages of a plan and divide again by their times, until that changes nothing.

    The model's weights and the state of the optimizer stay as they are: what runs has copies.

    Args:
        plan: as modelled.
        trial: of the model.
        say: told what takes time now.

    Returns:
        Of the plans that ran, the one whose slowest device took the least.

    Raises:
        poptorch.Error: it cannot run as a pipeline.
    """
    best: Plan | None = None
    seen: set[tuple[object, ...]] = set()
    devices = len(plan.loads)
    while len(seen) < _ROUNDS and (plan.spans, plan.homes) not in seen:
        seen.add((plan.spans, plan.homes))
        say(f"compiling {plan.stages} stages and running them, {len(seen)} of at most {_ROUNDS}")
        times = measured(plan, trial)
        spans = [(span.begin, span.end) for span in plan.spans]
        chain = plan.chain.scaled(spans, times)
        ran = dataclasses.replace(plan, chain=chain, measured=True)
        if best is None or _slowest(ran) < _slowest(best):
            best = ran
        plan = reading.divide(chain, devices, plan.limit, trial)
    assert best is not None
    return best


def _slowest(plan: Plan) -> float:
    return max(load.time for load in plan.loads)


def measured(plan: Plan, trial: Trial) -> list[Times]:
    """The least time that each stage took for a micro-batch, alone on the machine's cores.

    Raises:
        poptorch.Error: it cannot run as a pipeline.
    """
    with blocks.applied(plan, trial.module):
        compiled = CompiledModel(trial.module, trial.bound, trial.config, trial.rule, trial.options)
    runner = compiled.session.runner
    try:
        if not isinstance(runner, PipelineRunner):
            raise error(
                "Stages were to be measured, and they run as one program, because "
                f"{compiled.pipelining.reason}."
            )
        runner.one_at_a_time = True
        each: dict[tuple[int, bool], list[int]] = {}
        for _ in range(_CALLS):
            compiled.run(trial.bound)
            for passage in runner.measured.times if runner.measured else ():
                for timed in passage:
                    key = timed.task.stage, timed.task.backward
                    each.setdefault(key, []).append(timed.end - timed.begin)
    finally:
        compiled.session.close()
    return [
        Times(*(min(each.get((stage, back), [0])) / 1e9 for back in (False, True)))
        for stage in range(plan.stages)
    ]
