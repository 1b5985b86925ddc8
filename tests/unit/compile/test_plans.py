"""Code that is loaded with its plan: no pass of a lowering runs for it."""

import zipfile

import pytest
import torch

from abele import StepConfig, build, get_target, passes
from abele.compile import compiling, executable_file
from abele.compile.cache import CacheWarning
from abele.compile.portable_executable import ContainerFirst, pack
from abele.errors import CorruptExecutable
from abele.ops import lstm, recurrent_loop
from abele.passes.cleanup import dead_code
from abele.storage.container import Container, write
from abele.targets import Compiled, candidates
from abele.targets.cpu.emitted.lowering import Emitted
from abele.targets.reference import Interpreter
from helpers.fakes import Keeping, KeptCode
from helpers.models import MODELS
from helpers.runs import captured, rule_for, started

CONFIG = StepConfig(training=False)
PLAN = "run it"


class Planned(KeptCode):
    """Runs programs before its passes if it gets the plan that it gave."""

    compiles = True
    certain = False

    def __init__(self, name, beside):
        super().__init__()
        self.name, self._beside = name, beside
        self.asked, self.lowered, self.planned = 0, 0, 0
        self.can, self.plan = True, PLAN
        self.passes = (self.counted,)

    def counted(self, program):
        self.lowered += 1
        return dead_code(program)

    def why(self, program):
        self.asked += 1
        return None if self._beside else "it takes all"

    def also_measure(self, program):
        return self._beside

    def payload(self, program):
        return f"code of {program.name}".encode()

    def compile(self, program):
        made = super().compile(program)
        return Compiled(made.run, made.payload, self.plan)

    def load_planned(self, program, payload, plan):
        if not self.can:
            return None
        if plan != PLAN:
            raise CorruptExecutable(f"the plan is {plan!r}")
        self.planned += 1
        return Compiled(Interpreter().compile(program).run, payload, plan)


class Both(Keeping):
    """Measures two lowerings that have plans."""

    name = "both"

    def __init__(self):
        super().__init__()
        self.lowerings = (Planned("first", False), Planned("second", True))

    def counts(self):
        return [(each.compilations, each.lowered, each.planned) for each in self.lowerings]


@pytest.fixture
def programs():
    return captured(MODELS["dense"].fresh(), MODELS["dense"].batch(), CONFIG).programs


@pytest.fixture
def built(programs, monkeypatch, isolated_cache):
    """Builds with a cache; the first lowering is faster."""
    monkeypatch.delenv(candidates.ENVIRONMENT, raising=False)
    monkeypatch.setattr(compiling, "seconds", lambda compiled, inputs: 0.001)

    def make(target=None, cache=isolated_cache):
        target = target or Both()
        made, record = build(programs, CONFIG, target=target, cache=cache)
        return made, record, target

    return make


def test_a_cached_start_lowers_nothing(built):
    first, _, target = built()
    assert target.counts() == [(1, 1, 0), (1, 1, 0)]
    again, record, target = built()
    assert record.cache == "hit"
    assert target.counts() == [(0, 0, 1), (0, 0, 0)]
    assert [each.asked for each in target.lowerings] == [0, 0]
    assert again.compiled["forward"].plan == first.compiled["forward"].plan == PLAN


def test_what_is_found_says_how_it_was_lowered(built):
    _, first, _ = built()
    _, again, _ = built()
    assert again.lowerings == first.lowerings
    assert again.lowerings["forward"].reason.startswith("measured: ")
    assert again.declined == first.declined


def test_the_only_lowering_may_have_a_plan_too(built, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "second")
    _, first, target = built()
    assert target.counts() == [(0, 0, 0), (1, 1, 0)]
    _, again, target = built()
    assert target.counts() == [(0, 0, 0), (0, 0, 1)]
    assert again.lowerings == first.lowerings
    assert again.lowerings["forward"].reason == f"asked for by {candidates.ENVIRONMENT}"


def test_what_else_decides_leads_to_another_executable(programs, built, monkeypatch):
    keys = {built()[1].executable}
    monkeypatch.setenv(candidates.ENVIRONMENT, "second")
    _, record, _ = built()
    assert record.cache == "miss"
    assert "choice.asked:  there, second here" in record.why
    keys.add(record.executable)
    monkeypatch.delenv(candidates.ENVIRONMENT)
    monkeypatch.setattr(candidates, "_fingerprint", lambda: "other sources")
    keys.add(built()[1].executable)
    trapping = StepConfig(training=False, trap_exceptions=True)
    keys.add(build(programs, trapping, target=Both())[1].executable)
    assert len(keys) == 4


def test_who_wants_the_lowered_program_gets_it_made_once(built):
    first, _, _ = built()
    again, _, target = built()
    assert again.lowered("forward").fingerprint() == first.lowered("forward").fingerprint()
    assert again.lowered("forward").history[-1].by == "counted"
    assert again.lowered("forward") is again.lowered("forward")
    assert target.counts()[0] == (0, 1, 1)


def test_passes_that_somebody_watches_run(built):
    built()
    seen = []
    with passes.watched(seen.append):
        made, _, target = built()
    assert target.counts()[0] == (0, 1, 0)
    assert seen[-1] is made.programs[0]


def test_a_plan_that_does_not_fit_here_is_made_again(built):
    built()
    target = Both()
    target.lowerings[0].can = False
    _, record, _ = built(target)
    assert record.cache == "hit"
    assert target.counts()[0] == (0, 1, 0)


def test_a_plan_of_another_layout_costs_one_warning(built):
    other = Both()
    other.lowerings[0].plan = "run it backwards"
    built(other)
    with pytest.warns(CacheWarning, match="the plan is 'run it backwards'") as caught:
        _, record, target = built()
    assert (len(caught), record.cache, target.counts()[0]) == (1, "miss", (1, 1, 0))
    _, record, _ = built()
    assert record.cache == "hit"


def test_what_was_loaded_is_stored_whole(built, tmp_path):
    built()
    made, _, _ = built()
    executable_file.save(made, tmp_path / "x.abele")
    names = zipfile.ZipFile(tmp_path / "x.abele").namelist()
    assert {"code/forward", "plans/forward"} <= set(names)


def test_a_container_has_plans(programs, built, tmp_path):
    made, _, _ = built()
    content, members = pack(captured(MODELS["dense"].fresh(), MODELS["dense"].batch()), made)
    write(tmp_path / "x", "test", content, members)
    with Container(tmp_path / "x", "test") as file:
        _, record, target = built(cache=ContainerFirst(file, file.content, None))
    assert record.cache == "hit"
    assert target.counts()[0] == (0, 0, 1)


# -- with the compiler ---------------------------------------------------------------------------


class Tagger(torch.nn.Module):
    """Four steps of an LSTM, which are 200 operators."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 3)

    def forward(self, x, y):
        return torch.nn.functional.cross_entropy(self.last(self.layer(x)[0][-1]), y)


def calls(program, operator):
    return program.graph.graph.find_nodes(op="call_function", target=operator)


@pytest.mark.compiler
def test_layers_that_were_compiled_are_not_taken_apart_again(isolated_cache, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "emitted")
    batch = torch.randn(4, 2, 8), torch.tensor([0, 2])

    def trained():
        torch.manual_seed(0)
        module = Tagger()
        session, record = started(
            module, batch, rule_for(module), target=get_target("cpu"), cache=isolated_cache
        )
        results = [each.clone() for _ in range(2) for each in session.step(batch)]
        return [*results, *(each.clone() for each in session.params.values())], record, session

    first, record, session = trained()
    assert record.cache == "miss"
    assert calls(session.executable.lowered("step"), recurrent_loop.forward)

    def refuse(program):
        raise AssertionError(f"{program.name} was taken apart again")

    monkeypatch.setattr(get_target("cpu"), "apart", (refuse,))
    monkeypatch.setattr(Emitted, "passes", (refuse,))
    again, record, session = trained()
    assert record.cache == "hit"
    assert calls(session.executable.programs[0], lstm.forward)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
