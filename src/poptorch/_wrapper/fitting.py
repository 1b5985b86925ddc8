"""Whether a wrapped model fits into a memory."""

import os
from typing import Any

from abele.fit import asking
from poptorch._compiled.wrapped import WrappedModel
from poptorch._fit.check import FitReport, check
from poptorch._fit.trial import Trial
from poptorch._optimizers.in_use import OptimizerInUse
from poptorch._values.arguments import Bound
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors_of_engine import Translated


class Fitting:
    """Estimates the memory of a wrapped model; compiles and runs nothing.

    Args:
        model: the wrapped model.
        optimizer: what trains it.
        compiling: brings it up to date as before compiling.
        translated: raises the engine's errors as programs catch them.
    """

    def __init__(
        self,
        model: WrappedModel,
        optimizer: OptimizerInUse,
        compiling: Compiling,
        translated: Translated,
    ):
        self._model, self._optimizer = model, optimizer
        self._compiling, self._translated = compiling, translated

    def fit(
        self, *args: Any, limit: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> FitReport:
        """Says whether the model fits into a memory, before anything is compiled or run.

        An addition of this project. Takes seconds; weights and random numbers do not change.

        Args:
            args: as for the model's forward; every tensor brings the rows of a whole call.
            limit: ``cpu``, ``cuda:0`` or a size such as ``8GiB``; by default the memory of the
                device that would run it.
            kwargs: likewise arguments of forward.

        Returns:
            The verdict, the peak by role and by line of the program; ``print`` it.

        Raises:
            AssertionError: the rows do not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured, or there is no such limit.
        """
        return self.of(self._model.binder.bind(args, kwargs), None if limit is None else str(limit))

    def of(self, bound: Bound, limit: str | None) -> FitReport:
        """The same for bound arguments."""
        with self._translated:
            self._compiling.prepare()
            model = self._model
            trial = Trial(
                module=model.module,
                bound=bound,
                config=self._compiling.config(),
                rule=self._optimizer.rule,
                options=model.options,
            )
            return check(trial, limit)

    def answer_if_asked(self, bound: Bound) -> None:
        """Where a command has asked, answers it instead of compiling; see ``asking``."""
        asking.answer(lambda limit: self.of(bound, limit))
