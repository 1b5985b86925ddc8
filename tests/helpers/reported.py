"""Runs that are reported: records of the shared models, and journals that were never lived."""

import html
import os
import re
import subprocess
from pathlib import Path

from abele.compilation.build import BuildRecord
from abele.program import memory
from abele.report import facts
from abele.report.journal import Journal, Moment, window_of
from abele.report.record import Program, Run
from abele.runtime.session import Session
from helpers.models import MODELS
from helpers.runs import rule_for, started
from helpers.warm_python import python

#: A training wrapper that writes a report; the first argument is where.
PROGRAM = """
import os, signal, sys, time
import torch, poptorch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.fc(x), y)
opts = poptorch.Options().showCompilationProgressBar(False)
opts.enableProfiling(sys.argv[1]).modelName("net")
model = Net()
wrapped = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
"""
BEFORE = {
    "abele": "0",
    "name": "net",
    "training": True,
    "configuration": {"device_iterations": 1, "gradient_accumulation": 1, "replicas": 1},
}


def ran(
    code: str, *arguments: object, interpreter: object = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A program that has ended, on target reference unless variables say otherwise."""
    own = {"ABELE_TARGET": "reference", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **own, **variables}
    command = [str(each) for each in (interpreter or python(), "-c", code, *arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def words(path: Path) -> str:
    """The text of a page, without its elements."""
    text = re.sub(r"<style>.*?</style>|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", text))


def run_before() -> Run:
    """What is known before building."""
    return Run(process=facts.process(0), machine=facts.machine(), **BEFORE)


def run_of(name: str) -> Run:
    """What is known of one of the shared models, interpreted."""
    model = MODELS[name]
    module = model.fresh()
    return recorded(*started(module, model.batch(), rule_for(module)))


def recorded(
    session: Session, record: BuildRecord, programs: tuple[Program, ...] | None = None
) -> Run:
    """What is known of a session; ``programs`` may be what was found out of them already."""
    return Run(
        process=facts.process(0),
        machine=facts.machine(),
        build=facts.build(record),
        state=memory.state_bytes(session.executable.programs),
        programs=programs or facts.programs(session.executable, record),
        **BEFORE,
    )


def journal_of(
    *moments: tuple[str, str],
    calls: int = 20,
    computed: float = 0.02,
    losses: list[float] | None = None,
) -> Journal:
    """Calls of equal length with losses, and moments: kind and words."""
    listed = losses or [2.0 - index / calls for index in range(calls)]
    windows = [
        window_of(index * 0.1, (0.01, 0.001, computed, 0.002), loss, first=index)
        for index, loss in enumerate(listed)
    ]
    told = [
        Moment(at=float(i), kind=kind, what=what, where="call 3" if kind == "error" else "")
        for i, (kind, what) in enumerate(moments)
    ]
    return Journal(windows=tuple(windows), moments=tuple(told))
