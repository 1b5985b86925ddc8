"""Processes that share updates change to compiled programs after the same one, or none does.

Threads stand for processes.
"""

import dataclasses
import threading
import warnings

import pytest
import torch

from abele import build
from abele.collectives.torch_group import Counts
from abele.compilation.executable import Failure, TakeOverWarning
from abele.compilation.verdict import ComparisonWarning
from abele.errors import CompilerError, StoppedError, TrappedError
from abele.runtime import state
from abele.step.config import StepConfig
from helpers.instances import together
from helpers.models import MODELS
from helpers.runs import captured, rule_for, session_of
from helpers.taking_over import Machine, Right, Rounded, Scripted, both

DENSE = MODELS["dense"]


class Threads:
    """What threads share that stand for processes."""

    def __init__(self, size):
        self.size, self.barrier = size, threading.Barrier(size, timeout=30)
        self.values, self.notes = [None] * size, {}


class Thread:
    """One of them; a ``Collective``."""

    def __init__(self, rank, threads):
        self.rank, self.size, self.counts = rank, threads.size, Counts()
        self._threads = threads

    def _exchanged(self, value):
        threads = self._threads
        threads.values[self.rank] = value
        threads.barrier.wait()
        values = list(threads.values)
        threads.barrier.wait()
        return values

    def all_reduce(self, values, topic=""):
        values.copy_(torch.stack(self._exchanged(values.clone())).sum(0))

    def gather(self, topic, text):
        return self._exchanged(text)

    def tell(self, topic, text):
        self._threads.notes[topic, self.rank] = text

    def notes(self, topic):
        return {rank: text for (at, rank), text in self._threads.notes.items() if at == topic}

    def leave(self, topic, why):
        pass


class Instance:
    """A session of one process, and the script of what follows."""

    def __init__(self, rank, threads, config, target=None, at=None):
        self.rank, self.script = rank, Scripted(at=at)
        module, self._config = DENSE.fresh(), config
        rule = rule_for(module, "adam")
        programs = captured(module, DENSE.batch(), config, rule)
        self.interpreted, self.compiled = both(programs, config, target)
        waiting = dataclasses.replace(self.interpreted, later=self.script)
        self._parts = (waiting, module, config, rule)
        self._collective = Thread(rank, threads)
        self.session = None

    def start(self):
        self.session = session_of(*self._parts, collective=self._collective)

    def step(self, seed, batch=None):
        rows = 8 * self._config.device_iterations * self._config.gradient_accumulation
        generator = torch.Generator().manual_seed(1000 * self.rank + seed)
        self.session.step(list(batch or DENSE.data(rows, generator)))

    @property
    def runs_compiled(self):
        return self.session.executable.compiled is self.compiled.compiled


@pytest.fixture
def instances():
    """Makes two that are connected; those of one test have numbers of their own."""

    def make(settings=({}, {}), **config):
        config = StepConfig(processes=2, **config)
        threads = Threads(2)
        made = [Instance(rank, threads, config, **each) for rank, each in enumerate(settings)]
        # Sessions count themselves; those of one run are to have the same number.
        number = iter([7, 7])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("abele.runtime.exchange._numbers", number)
            together(made, Instance.start)
        return made

    return make


def steps(made, seeds):
    """Calls of all; returns the warnings, whoever they are of."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for seed in seeds:
            together(made, lambda each, seed=seed: each.step(seed))
    return [str(each.message) for each in shown if each.category is TakeOverWarning]


def weights(made):
    return [
        {name: value.clone() for name, value in state.tensors_of(each.session).items()}
        for each in made
    ]


def test_all_change_after_the_update_in_which_the_last_was_ready(instances):
    made = first, second = instances()
    first.script.outcome = first.compiled
    steps(made, range(3))
    assert not first.runs_compiled, "it did not wait for the other"
    second.script.outcome = second.compiled
    steps(made, [3])
    assert not any(each.runs_compiled for each in made)
    steps(made, range(4, 6))
    assert first.runs_compiled
    assert second.runs_compiled
    for each in made:
        assert each.script.said == ["compiled programs took over at update 4"]
        assert each.script.running.since == 4
    one, other = weights(made)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_several_updates_in_a_call_end_before_all_change(instances):
    made = instances(device_iterations=2, gradient_accumulation=2)
    for each in made:
        each.script.outcome = each.compiled
    steps(made, range(2))
    assert [each.script.said for each in made] == [["compiled programs took over at update 2"]] * 2


def test_all_change_at_the_update_that_was_asked_for(instances):
    made = first, second = instances(settings=({"at": 3}, {"at": 3}))
    first.script.outcome, second.script.outcome = first.compiled, second.compiled
    steps(made, range(3))
    assert not any(each.runs_compiled for each in made)
    steps(made, [3])
    assert [each.script.running.since for each in made] == [3, 3]
    assert first.runs_compiled


def test_a_failure_of_one_keeps_all_as_they_are_and_all_name_it(instances):
    made = first, second = instances()
    second.script.outcome = Failure("the process that compiled was ended by SIGKILL", "no memory")
    said = steps(made, range(3))
    first.script.outcome = first.compiled
    said += steps(made, [3])
    assert all("do not take over" in text for text in said)
    assert sorted("no memory" in text for text in said) == [False, True]
    for each in made:
        assert not each.runs_compiled
        problem = "process 1: the process that compiled was ended by SIGKILL"
        assert each.script.running.sentence() == f"programs are interpreted: {problem}"
        assert each.script.closed


def test_programs_that_compute_something_else_in_one_keep_all_as_they_are(instances):
    wrong = Rounded(1.001, only="fc1.weight")
    made = instances(settings=({}, {"target": wrong}))
    for each in made:
        each.script.outcome = each.compiled
    steps(made, range(2))
    assert not any(each.runs_compiled for each in made)
    for each in made:
        assert (
            "process 1: accumulator 'accumulator.fc1.weight' differs by"
            in each.script.running.problem
        )


def test_an_update_that_is_given_up_decides_too(instances):
    """Else one process would know, and the one that gave up would not."""
    made = first, second = instances(trap_exceptions=True)
    first.script.outcome, second.script.outcome = first.compiled, second.compiled
    batch = [tensor.clone() for tensor in DENSE.batch(8)]
    batch[1] *= 1e30  # overflows

    def call(each):
        with pytest.raises(TrappedError if each is second else StoppedError):
            each.step(0, batch if each is second else None)

    together(made, call)
    steps(made, [1])
    assert [each.script.running.since for each in made] == [1, 1]


def test_where_the_target_was_insisted_on_all_get_an_error(instances):
    made = first, second = instances()
    for each in made:
        each.script.running.required = "cpu"
    first.script.outcome = Failure("no space left")
    steps(made, [0])
    for _ in range(2):
        for each in made:
            with pytest.raises(CompilerError, match="process 0: no space left"):
                each.step(1)
    assert second.script.closed


def test_a_batch_that_one_process_cannot_compute_stops_all():
    config, threads = StepConfig(processes=2), Threads(2)
    model = MODELS["embedding and layer norm"]

    class Process:
        def __init__(self, rank):
            self.rank, self.module = rank, model.fresh()
            rule = rule_for(self.module, "adam")
            programs = captured(self.module, model.batch(), config, rule).programs
            made, _ = build(programs, config, target=Machine(""))
            self.parts, self.collective = (made, self.module, config, rule), Thread(rank, threads)

        def step(self):
            session = session_of(*self.parts, collective=self.collective)
            tokens, following = model.batch()
            kind = StoppedError if self.rank else IndexError
            with pytest.raises(kind, match="takes the indices 0 to 29"):
                session.step([tokens + 1000 * (1 - self.rank), following])
            session.step([tokens, following])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abele.runtime.exchange._numbers", iter([7, 7]))
        processes = [Process(rank) for rank in range(2)]
        together(processes, Process.step)


def test_processes_use_the_same_code_where_that_of_one_does_not_agree():
    config, threads = StepConfig(processes=2), Threads(2)

    class Process:
        def __init__(self, rank):
            self.collective, self.module = Thread(rank, threads), DENSE.fresh()
            self.rule = rule_for(self.module, "adam")
            programs = captured(self.module, DENSE.batch(), config, self.rule).programs
            target = Machine("exp_avg" if rank else "", Right())
            self.made, self.record = build(programs, config, target=target)

        def step(self):
            arguments = self.made, self.module, config, self.rule
            self.session = session_of(*arguments, collective=self.collective)
            self.session.step(list(DENSE.batch()))

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr("abele.runtime.exchange._numbers", iter([7, 7]))
        processes = [Process(rank) for rank in range(2)]
        together(processes, Process.step)
    assert {each.category for each in caught} == {ComparisonWarning}
    for process in processes:
        assert process.record.running.check.endswith(", lowered by 'right' instead")
    one, other = (process.session.params for process in processes)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
