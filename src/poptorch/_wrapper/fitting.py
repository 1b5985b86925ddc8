"""Memory estimates and stages of a wrapped model, and answers to ``abele fit`` and ``stage``."""

import os
from typing import Any

from abele.fit import questions
from abele.fit.limits import of_device, of_machine
from poptorch import _stage
from poptorch._fit import FitReport, check
from poptorch._forward.arguments import Bound
from poptorch._stage import StageReport
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
    ) -> FitReport | StageReport:
        """Estimate whether the model fits into a memory, before anything is compiled or run.

        An addition of this project. Takes seconds; weights and random numbers do not change.

        Args:
            args: arguments of the model's forward, with the batch of a full call.
            limit: ``cpu``, ``cuda:0`` or a size such as ``8GiB``; ``mk2`` for IPUs, each with a
                stage of the model's blocks. By default the memory of the device that would run it.
            kwargs: keyword arguments of forward.

        Returns:
            The verdict, and the peak by role and by line of the program; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            with self._translated:
                return self._fit(bound, None if limit is None else str(limit))

    def _fit(self, bound: Bound, limit: str | None) -> FitReport | StageReport:
        known = None if limit is None else of_machine(limit)
        trial = self._compiling.trial(bound)
        if known is None or not known.is_mk2:
            return check(trial, limit)
        return StageReport(plan=_stage.plan_as_placed(trial, known))

    def planStages(
        self, ipus: int, *args: Any, limit: str | os.PathLike[str] = "mk2", **kwargs: Any
    ) -> StageReport:
        """Divide the model into stages that take equally long and fit into memory.

        An addition of this project. Nothing changes before ``apply`` of the result is called.

        Args:
            ipus: number of stages that run at the same time.
            args: arguments of the model's forward, with the batch of a full call.
            limit: memory of each IPU: ``mk2``, or a size such as ``8GiB``.
            kwargs: keyword arguments of forward.

        Returns:
            The stages with memory, share of the work, and lines to paste; ``print`` it.

        Raises:
            AssertionError: the batch does not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured or divided, or there is no such limit.
        """
        with self._lock:
            bound = self._wrapped.binder.bind(args, kwargs)
            with self._translated:
                return self._divided(bound, ipus, str(limit))

    def _divided(self, bound: Bound, ipus: int, limit: str) -> StageReport:
        known = of_device(limit)
        plan = _stage.plan_of(self._compiling.trial(bound), ipus, known)
        return StageReport(plan=plan, model=self._wrapped.user_module)

    def _answer_if_asked(self, bound: Bound) -> None:
        """Answer the question of a command, if any, instead of compiling."""
        question = questions.taken()
        if question is None:
            return
        wanted = question.wanted
        with self._translated:
            if question.command == "fit":
                question.answer_with(lambda: self._fit(bound, wanted))
            question.answer_with(lambda: self._divided(bound, wanted["devices"], wanted["limit"]))
