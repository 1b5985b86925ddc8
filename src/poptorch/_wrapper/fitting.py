"""Memory estimates and stages of a wrapped model, and answers to ``abele fit`` and ``stage``."""

import os
import sys
from typing import Any

from abele.fit import questions
from abele.fit.limits import Limit, of_machine
from abele.fit.questions import Say, Taken, silent
from abele.stage.command import of_device, shown
from poptorch import _stage
from poptorch._error import Error
from poptorch._fit import FitReport, Search, check
from poptorch._forward.arguments import Bound
from poptorch._stage import OfStages, Placed, PlacedReport, StageReport
from poptorch._wrapper.compiled import WrappedModel
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors import Translated


class Estimates:
    """The members of a wrapper that estimate its memory, and divide it into stages."""

    _lock: Any
    _wrapped: WrappedModel
    _compiling: Compiling
    _translated: Translated

    def fit(
        self, *args: Any, limit: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> FitReport | PlacedReport:
        """Estimate whether the model fits into a memory, before anything is compiled or run.

        An addition of this project. Takes seconds; weights and random numbers do not change.

        Args:
            args: arguments of the model's forward, with the batch of a full call.
            limit: ``cpu``, ``cuda:0`` or a size such as ``8GiB``; ``mk2`` for IPUs, each with a
                stage of the model's blocks, or ``mk2x4`` for four with the stages that fit them
                best. By default the memory of the device that would run it.
            kwargs: keyword arguments of forward.

        Returns:
            The verdict, and the peak by role and by line of the program; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            return self._fit(bound, None if limit is None else str(limit))

    def _fit(self, bound: Bound, limit: str | None) -> FitReport | PlacedReport:
        with self._translated:
            known = None if limit is None else of_machine(limit)
            trial = self._compiling.trial(bound)
            if known is None or known.ipus is None:
                return check(trial, limit)
            plan = _stage.planned(trial, known)
            search = Search(trial, Placed(plan=plan), OfStages(known, plan))
            if known.ipus:
                return StageReport(answer=plan, model=self._wrapped.user_module, _search=search)
            return PlacedReport(answer=plan, _search=search)

    def planStages(
        self,
        ipus: int,
        *args: Any,
        limit: str | os.PathLike[str] = "mk2",
        measure: bool = False,
        **kwargs: Any,
    ) -> StageReport:
        """Divide the model into stages that take equally long and fit into memory.

        An addition of this project. Nothing changes before ``apply`` of the result is called.

        Args:
            ipus: number of stages that run at the same time.
            args: arguments of the model's forward, with the batch of a full call.
            limit: memory of each IPU: ``mk2``, or a size such as ``8GiB``.
            measure: compile the stages, run them on copies of the weights, and divide by their
                times.
            kwargs: keyword arguments of forward.

        Returns:
            The stages with time, memory, and lines to paste; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured or divided, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            with self._translated:
                return self._divided(bound, ipus, of_device(str(limit)), measure=measure)

    def _divided(
        self, bound: Bound, ipus: int, limit: Limit, *, measure: bool, say: Say = silent
    ) -> StageReport:
        trial = self._compiling.trial(bound)
        plan = _stage.plan_of(trial, ipus, limit, say)
        if measure:
            _stage.refuse_if_not_applicable(plan, self._wrapped.options)
            plan = _stage.balanced(plan, trial, say)
        return StageReport(answer=plan, model=self._wrapped.user_module)

    def _answer_if_asked(self, bound: Bound) -> None:
        """Answer the question of a command, if any, instead of compiling."""
        taken = questions.taken()
        if taken is None:
            return
        if taken.question.command == "fit":
            taken.answer_with(lambda: self._fit(bound, taken.question.wanted))
        self._answer_with_stages(bound, taken)

    def _answer_with_stages(self, bound: Bound, taken: Taken) -> None:
        """Answer with stages, or apply them if the program goes on."""
        wanted, goes_on = taken.question.wanted, taken.question.goes_on
        devices, measure = wanted["devices"], wanted["measure"]
        try:
            with self._translated:
                limit = of_device(wanted["limit"])
                report = self._divided(bound, devices, limit, measure=measure, say=_say)
                if goes_on:
                    _stage.refuse_if_not_applicable(report.plan, self._wrapped.options)
        except Error as problem:
            taken.refuse(problem.message)
        if not goes_on:
            taken.answer(report)
        print(shown(report, json=wanted["json"]), file=sys.stderr)
        self._wrapped.stages = report.plan


def _say(text: str) -> None:
    print(f"abele stage: {text}", file=sys.stderr, flush=True)
