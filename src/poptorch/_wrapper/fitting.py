"""Whether a wrapped model fits into a memory."""

import os
from typing import Any

from abele.fit import asking
from abele.fit.limits import of_machine
from poptorch._compiled.wrapped import WrappedModel
from poptorch._fit.check import FitReport, check
from poptorch._stage.report import PlacedReport
from poptorch._values.arguments import Bound
from poptorch._wrapper.compiling import Compiling
from poptorch._wrapper.errors_of_engine import Translated
from poptorch._wrapper.staging import Staging


class Fitting:
    """Estimates the memory of a wrapped model; compiles and runs nothing.

    Args:
        model: the wrapped model.
        compiling: says what would be compiled.
        translated: raises the engine's errors as programs catch them.
        staging: answers for stages of a pipeline.
    """

    def __init__(
        self,
        model: WrappedModel,
        compiling: Compiling,
        translated: Translated,
        staging: Staging,
    ):
        self._model, self._staging = model, staging
        self._compiling, self._translated = compiling, translated

    def fit(
        self, *args: Any, limit: str | os.PathLike[str] | None = None, **kwargs: Any
    ) -> FitReport | PlacedReport:
        """Says whether the model fits into a memory, before anything is compiled or run.

        An addition of this project. Takes seconds; weights and random numbers do not change.

        Args:
            args: as for the model's forward; every tensor brings the rows of a whole call.
            limit: ``cpu``, ``cuda:0`` or a size such as ``8GiB``; ``mk2`` for IPUs, each with a
                stage that the model's blocks make, or ``mk2x4`` for four with the stages that
                fit them best. By default the memory of the device that would run it.
            kwargs: likewise arguments of forward.

        Returns:
            The verdict, the peak by role and by line of the program; ``print`` it.

        Raises:
            AssertionError: the rows do not divide, or arguments do not fit forward.
            poptorch.Error: the model cannot be captured, or there is no such limit.
        """
        return self.of(self._model.binder.bind(args, kwargs), None if limit is None else str(limit))

    def of(self, bound: Bound, limit: str | None) -> FitReport | PlacedReport:
        """The same for bound arguments."""
        with self._translated:
            ipus = None if limit is None else of_machine(limit)
        if ipus is not None and ipus.ipus is not None:
            return self._staging.as_placed(bound, ipus)
        with self._translated:
            return check(self._compiling.trial(bound), limit)

    def answer_if_asked(self, bound: Bound) -> None:
        """Where a command has asked, answers it instead of compiling; see ``asking``."""
        self._staging.answer_if_asked(bound)
        asking.answer(lambda limit: self.of(bound, limit))
