"""A Chrome trace of a compiled model's first calls, and the times of a pipeline in them."""

import json
from collections.abc import Iterator

from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer
from abele.step import batching
from poptorch._compiled.model import CompiledModel
from poptorch._process import chrome_trace
from poptorch._report.pipeline import report_of
from poptorch.options._engine import Report


class ExecutionTrace(Observer):
    """Writes ``steps.json`` and ``pipeline.md`` after each of the first calls, then leaves.

    Args:
        compiled: the model whose session it observes.
        wanted: where the files go, and of how many calls.
    """

    def __init__(self, compiled: CompiledModel, wanted: Report):
        self._compiled, self._folder, self._calls = compiled, wanted.folder, wanted.runs
        self._written = 0
        self._events = [chrome_trace.process(wanted.folder.name)]

    def on_call_end(self, call: CallRecord) -> None:
        """Writes the files anew; a call that came to an error is left out.

        Raises:
            OSError: a file cannot be written.
        """
        if call.error is not None:
            return
        self._written += 1
        if self._written == self._calls:
            self._compiled.session.remove_observer(self)
        stages = report_of(self._compiled)
        self._events += [*self._of_call(call), *stages.events()]
        self._folder.mkdir(parents=True, exist_ok=True)
        if stages.measured is not None:
            text = "\n\n".join([f"# {self._folder.name}", *stages.sections()])
            (self._folder / "pipeline.md").write_text(f"{text}\n")
        lines = ",\n".join(map(json.dumps, self._events))
        (self._folder / "steps.json").write_text(f"[\n{lines}\n]\n")

    def _of_call(self, call: CallRecord) -> Iterator[chrome_trace.Event]:
        name = f"call {self._written}"
        what = self._compiled.record.running.sentence()
        yield chrome_trace.span(name, "call", call.began_ns, call.ended_ns, thread=0, programs=what)
        steps = zip(call.micro_steps(), batching.schedule(self._compiled.config), strict=True)
        for (begin, end), step in steps:
            what = "micro-batch and update" if step.updates else "micro-batch"
            name, row = f"{what} {step.index}", step.replica + 1
            yield chrome_trace.span(name, "step", begin, end, thread=row, replica=step.replica)
