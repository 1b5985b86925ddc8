"""Stages of a wrapped model: divided, measured and applied."""

import os
import sys
from typing import Any

from abele.fit.answers import Say, silent
from abele.fit.limits import Limit
from abele.stage import asking
from abele.stage.command import of_device, shown
from poptorch._compiled.wrapped import WrappedModel
from poptorch._error import Error
from poptorch._fit.ladder import Search
from poptorch._stage import blocks, measuring, reading
from poptorch._stage.changes import OfStages, Placed, planned
from poptorch._stage.report import PlacedReport, StageReport
from poptorch._values.arguments import Bound
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors_of_engine import Translated


class Staging:
    """Divides a wrapped model into stages.

    Args:
        model: the wrapped model.
        compiling: says what would be compiled.
        translated: raises the engine's errors as programs catch them.
    """

    def __init__(self, model: WrappedModel, compiling: Compiling, translated: Translated):
        self._model, self._compiling, self._translated = model, compiling, translated

    def planStages(
        self,
        ipus: int,
        *args: Any,
        limit: str | os.PathLike[str] = "mk2",
        measure: bool = False,
        **kwargs: Any,
    ) -> StageReport:
        """Divides the model into stages that take equally long and fit into memory.

        An addition of this project. Nothing changes before ``apply`` of the result is called.

        Args:
            ipus: how many stages work at the same time.
            args: as for the model's forward; every tensor brings the rows of a whole call.
            limit: the memory of each: ``mk2``, or a size such as ``8GiB``.
            measure: compile the stages and run them on copies of the weights, and divide by the
                times they take.
            kwargs: likewise arguments of forward.

        Returns:
            The stages with time, memory, and lines to paste; ``print`` it.

        Raises:
            AssertionError: the rows do not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured or divided, or there is no such limit.
        """
        bound = self._model.binder.bind(args, kwargs)
        with self._translated:
            return self._divided(bound, ipus, of_device(str(limit)), measure=measure)

    def as_placed(self, bound: Bound, limit: Limit) -> PlacedReport:
        """The stages that blocks make, or as many as ``limit`` has devices."""
        with self._translated:
            trial = self._compiling.trial(bound)
            plan = planned(trial, limit)
            search = Search(trial, Placed(plan=plan), OfStages(limit, plan))
            if limit.ipus:
                return StageReport(plan=plan, model=self._model.user_module, _search=search)
            return PlacedReport(plan=plan, _search=search)

    def _divided(
        self, bound: Bound, ipus: int, limit: Limit, *, measure: bool, say: Say = silent
    ) -> StageReport:
        trial = self._compiling.trial(bound)
        plan = reading.plan_of(trial, ipus, limit, say)
        if measure:
            blocks.refuse_if_not_applicable(plan, self._model.options)
            plan = measuring.balanced(plan, trial, say)
        return StageReport(plan=plan, model=self._model.user_module)

    def answer_if_asked(self, bound: Bound) -> None:
        """Where a command has asked, answers it instead of compiling, or compiles in stages."""
        taken = asking.taken()
        if taken is None:
            return
        request = taken.request
        try:
            with self._translated:
                limit = of_device(request.limit)
                report = self._divided(
                    bound, request.devices, limit, measure=request.measure, say=_say
                )
                if request.run:
                    blocks.refuse_if_not_applicable(report.plan, self._model.options)
        except Error as problem:
            taken.refuse(problem.message)
        if not request.run:
            taken.answer(report)
        print(shown(report, json=request.json), file=sys.stderr)
        self._model.stages = report.plan


def _say(text: str) -> None:
    """On stderr, where the answer is not."""
    print(f"abele stage: {text}", file=sys.stderr, flush=True)
