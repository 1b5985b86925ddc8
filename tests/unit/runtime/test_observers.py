"""Observers of a session: what they are told, in which order, and that they come and go freely."""

import ast
from pathlib import Path

import pytest
import torch

import poptorch
from abele import StepConfig, build, get_target
from abele.errors import BatchError
from abele.runtime.observers import Observer
from abele.runtime.session import of_new_sessions
from abele.targets import ENVIRONMENT
from helpers.models import MODELS, plain_loss
from helpers.pipelined import at_stage, sessions
from helpers.runs import captured, rule_for, started

DENSE = MODELS["dense"]
ACCUMULATING = StepConfig(gradient_accumulation=2)


class Told(Observer):
    """Writes down what it is told.

    Args:
        log: where.
        name: comes before each entry.
        at: the hook at which it raises.
    """

    def __init__(self, log, name="", at=""):
        self._log, self._name, self._at = log, name, at

    def _note(self, hook, *what):
        self._log.append((f"{self._name}{hook}", *what))
        if hook == self._at:
            raise RuntimeError(f"stopped at {hook}")

    def on_stage(self, stage, fraction):
        self._note("stage", stage, fraction)

    def on_call_begin(self, began_ns):
        self._note("begin")

    def on_micro_step(self, step, begin, end):
        assert begin < end
        self._note("micro-step", step.index)

    def on_update(self, step):
        self._note("update", step.index)

    def on_call_end(self, call):
        self.call = call
        self._note("end")


def session_of(config=ACCUMULATING):
    module = DENSE.fresh()
    return started(module, DENSE.batch(), rule_for(module), config)[0]


def batch_of(count=2):
    return [torch.cat([tensor] * count) for tensor in DENSE.batch()]


ONE_CALL = [("begin",), ("micro-step", 0), ("update", 1), ("micro-step", 1), ("end",)]


def test_a_call_is_told_from_beginning_to_end():
    log, session = [], session_of()
    told = Told(log)
    session.add_observer(told)
    session.step(batch_of())
    assert log == ONE_CALL
    assert told.call == session.last_call
    moments = [told.call.began_ns, *told.call.marks, told.call.ended_ns]
    assert moments == sorted(moments)
    assert len(told.call.micro_steps()) == 2
    assert told.call.error is None


class TwoStages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x):
        at_stage(0)
        x = self.first(x)
        at_stage(1)
        return plain_loss(self.second(x), "mean")


def test_a_pipeline_is_told_the_same():
    log, module = [], TwoStages()
    piped, _ = sessions(module, [torch.ones(2, 3)], ACCUMULATING, rule_for(module), 2)
    piped.add_observer(Told(log))
    piped.step([torch.ones(4, 3)])
    piped.close()
    assert log == ONE_CALL


def test_observers_are_told_in_the_order_in_which_they_came():
    log, session = [], session_of(StepConfig())
    first, second = Told(log, "first "), Told(log, "second ")
    session.add_observer(first)
    session.add_observer(second)
    session.step(DENSE.batch())
    assert [entry[0] for entry in log[:2]] == ["first begin", "second begin"]
    session.remove_observer(first)
    log.clear()
    session.step(DENSE.batch())
    assert [entry[0] for entry in log] == [
        f"second {hook}" for hook in ("begin", "update", "micro-step", "end")
    ]


def test_an_observer_may_leave_while_it_is_told():
    log, session = [], session_of(StepConfig())

    class Once(Told):
        def on_call_end(self, call):
            super().on_call_end(call)
            session.remove_observer(self)

    session.add_observer(Once(log, "once "))
    session.add_observer(Told(log, "always "))
    for _ in range(2):
        session.step(DENSE.batch())
    assert [name for name, *_ in log].count("once end") == 1
    assert [name for name, *_ in log].count("always end") == 2


def test_whoever_does_not_observe_cannot_leave():
    with pytest.raises(ValueError, match="does not observe this session"):
        session_of().remove_observer(Observer())


def test_an_error_of_the_call_is_told():
    log, session = [], session_of()
    told = Told(log)
    session.add_observer(told)
    with pytest.raises(BatchError):
        session.step([tensor[:-1] for tensor in batch_of()])
    assert log == [("begin",), ("end",)]
    assert isinstance(told.call.error, BatchError)
    assert session.last_call is None
    assert not session.was_stopped


@pytest.mark.parametrize("hook", ["begin", "micro-step", "update", "end"])
def test_what_an_observer_raises_ends_the_call(hook):
    session, plain = session_of(), session_of()
    session.step(batch_of())
    before = session.last_call
    broken = Told([], at=hook)
    session.add_observer(broken)
    with pytest.raises(RuntimeError, match=f"stopped at {hook}"):
        session.step(batch_of())
    assert session.was_stopped is (hook != "begin")
    assert session.last_call == before
    session.remove_observer(broken)
    session.step(batch_of())
    # Sums of the call that was stopped are not in the next update.
    for _ in range(2 if hook in ("begin", "micro-step") else 3):
        plain.step(batch_of())
    for name, value in session.params.items():
        assert torch.equal(value, plain.params[name]), name


def test_a_call_ends_when_its_results_are_where_they_are_wanted():
    log, session = [], session_of()
    session.add_observer(Told(log))
    began = 5
    result = session.call(batch_of(), began, lambda outputs: log.append(("delivered",)) or "here")
    assert result == "here"
    assert [entry[0] for entry in log[-2:]] == ["delivered", "end"]
    assert session.last_call.began_ns == began


def test_stages_of_building_are_told_by_the_same_object():
    log = []
    programs = captured(MODELS["affine"].fresh(), MODELS["affine"].batch()).programs
    build(
        programs,
        StepConfig(training=False),
        target=get_target("reference"),
        progress=Told(log).on_stage,
    )
    assert [entry[1] for entry in log] == ["passes", "compile forward"]


def test_a_call_tells_its_inputs_before_anything_runs():
    class Inputs(Told):
        def on_inputs(self, inputs):
            self._note("inputs", [each.shape for each in inputs])

    log, session, batch = [], session_of(), batch_of()
    session.add_observer(Inputs(log))
    session.step(batch)
    assert log[:2] == [("begin",), ("inputs", [each.shape for each in batch])]


def test_new_sessions_are_observed_by_whoever_asked_for_them():
    log = []
    with of_new_sessions(lambda session: Told(log) if session.config.training else None):
        session = session_of()
    session_of().step(batch_of())  # made afterwards
    assert log == []
    session.step(batch_of())
    assert log == ONE_CALL


def test_a_session_of_a_training_model_knows_its_loss(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "reference")
    model = torch.nn.Linear(2, 2)

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            y = self.model(x)
            return y, poptorch.identity_loss(y.sum(), reduction="none")

    made = []
    options = poptorch.Options().showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    with of_new_sessions(made.append):
        poptorch.trainingModel(WithLoss(), options, optimizer)(torch.ones(1, 2))
        poptorch.inferenceModel(model, options)(torch.ones(1, 2))
    assert [session.loss for session in made] == [1, None]


SOURCE = Path(__file__).parents[3] / "src"


def methods_in(path):
    """Names of the methods that the classes of a file define; properties are not methods."""
    for node in ast.walk(ast.parse(path.read_text())):
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef):
                decorators = {ast.unparse(decorator) for decorator in each.decorator_list}
                if not any(d == "property" or d.endswith(".setter") for d in decorators):
                    yield each.name


def replaced_in(path, methods):
    """Assignments that put something in the place of a method of another object."""
    for node in ast.walk(ast.parse(path.read_text())):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stored and node.attr in methods and ast.unparse(node.value) != "self":
            yield f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_nobody_replaces_a_method_of_a_session_or_a_compiled_model():
    classes = ("abele/runtime/session.py", "abele/runtime/micro_steps.py")
    classes += ("poptorch/_wrapper/compiled.py", "poptorch/_wrapper/executor.py")
    methods = {name for path in classes for name in methods_in(SOURCE / path)}
    results = [
        place
        for path in (*SOURCE.glob("abele/**/*.py"), *SOURCE.glob("poptorch/**/*.py"))
        if path.parent.name != "_torch"  # knows torch, which has methods of the same names
        for place in replaced_in(path, methods)
    ]
    assert results == []
