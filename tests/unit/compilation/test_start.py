"""How first steps run: what is asked, what the programs and the machine allow, and why."""

import dataclasses

import pytest

from abele import StepConfig, build, get_target
from abele.compilation import start
from abele.compilation.build import FallbackWarning
from abele.compilation.executable import Running
from abele.compilation.start import Start
from abele.compilation.tiers import Wanted
from abele.errors import CompilerError, LoweringError, TargetError
from helpers.fakes import Keeping, Refusing, prefer
from helpers.models import MODELS
from helpers.runs import captured, rule_for
from helpers.taking_over import Scripted

DENSE = MODELS["dense"]


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch):
    monkeypatch.delenv("ABELE_START")
    # What stand-ins take says nothing, least of all that they are worth waiting for.
    monkeypatch.setattr("abele.compilation.estimates.expected_s", lambda *_: None)


class Slow(Keeping):
    """A target that compiles for each program."""

    name = "slow"

    def __init__(self):
        super().__init__()
        for lowering in self.lowerings:
            lowering.compiles = True


class SlowWithout(Refusing):
    """The same without a compiler."""

    def __init__(self):
        super().__init__()
        for lowering in self.lowerings:
            lowering.compiles = True


def built(target, wanted=Start.TIERED, **settings):
    config = StepConfig(**settings.pop("config", {}))
    module = DENSE.fresh()
    rule = rule_for(module) if config.training else None
    programs = captured(module, DENSE.batch(), config, rule).programs
    return build(programs, config, target=target, start=wanted, **settings)


def test_nothing_asked():
    assert (start.requested(), start.swap_at()) == (None, None)


@pytest.mark.parametrize("name", [str(each) for each in Start])
def test_the_environment_asks(name, monkeypatch):
    monkeypatch.setenv("ABELE_START", name)
    assert start.requested() == name


def test_an_unknown_start_is_refused(monkeypatch):
    monkeypatch.setenv("ABELE_START", "soon")
    with pytest.raises(
        TargetError, match=r"ABELE_START='soon' was found\. Set it to one of tiered"
    ):
        start.requested()


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "²"])
def test_an_update_is_a_number(text, monkeypatch):
    monkeypatch.setenv("ABELE_SWAP_AT", text)
    with pytest.raises(TargetError, match="Set it to a number of updates, 0 or more"):
        start.swap_at()


@pytest.mark.parametrize("name", ["wait", "interpret"])
def test_an_update_at_which_nothing_can_take_over_is_refused(name, monkeypatch):
    monkeypatch.setenv("ABELE_SWAP_AT", "3")
    monkeypatch.setenv("ABELE_START", name)
    with pytest.raises(TargetError, match=f"ABELE_START={name} and ABELE_SWAP_AT=3 were found"):
        built(Slow())


@pytest.mark.parametrize(
    ("environment", "asked", "wanted"),
    [
        ("wait", "tiered", "wait"),
        ("interpret", "wait", "interpret"),
        ("tiered", "wait", "wait"),
        ("tiered", "interpret", "tiered"),
    ],
)
def test_the_environment_wins_but_over_callers_who_wait(environment, asked, wanted, monkeypatch):
    monkeypatch.setenv("ABELE_START", environment)
    assert Wanted.of(Start(asked), print).start == wanted


def test_waiting_is_the_default():
    made, record = built(Slow(), Start.WAIT)
    assert made.later is None
    assert record.running == Running(why="as asked", required="slow")
    assert record.running.sentence() == "compiled programs run"


def test_interpreting_compiles_nothing():
    target = Slow()
    made, record = built(target, Start.INTERPRET)
    assert target.compilations == 0
    assert made.later is None
    assert record.running.interpreted
    assert record.running.sentence() == "programs are interpreted, as asked"


def test_where_nothing_is_compiled_nothing_is_waited_for():
    _, record = built(Keeping())
    assert record.running.why == "nothing is compiled for these programs"
    assert record.running.sentence() == "programs are interpreted; nothing is compiled for them"


def test_an_update_that_is_named_counts_where_nothing_is_compiled(monkeypatch):
    """Else a run in which such programs took over, because they measured faster, has no repeat."""
    monkeypatch.setenv("ABELE_SWAP_AT", "2")
    made, record = built(Keeping())
    assert made.later.at == 2
    assert record.running.sentence() == "programs are interpreted until compiled ones are ready"
    _, record = built(get_target("reference"))
    assert record.running.why == "nothing is compiled for these programs"


# -- processes that train together ---------------------------------------------------------

TOGETHER = {"config": {"processes": 2}}


def beside(*others):
    """A ``gather`` in which other processes say what is given; what was said goes to ``.said``."""

    def gather(text):
        gather.said.append(text)
        return [*others, text]

    gather.said = []
    return gather


class Unprepared(Keeping):
    """Compiles nothing for a program, but something once per machine."""

    name = "unprepared"

    prepared = False

    def setup_seconds_left(self, needed=None):
        return 0.0 if self.prepared else 20.0

    def prepare(self, needed=None):
        self.prepared = True


def test_what_is_made_once_per_machine_is_made_first():
    stages = []
    target = Unprepared()
    _, record = built(target, Start.WAIT, progress=lambda stage, _: stages.append(stage))
    assert (record.running.start, record.running.interpreted) == (Start.WAIT, False)
    assert stages == ["passes", "compile abele's kernels, once on this machine", "compile step"]
    assert record.seconds["kernels"] >= 0
    _, record = built(target)
    assert record.running.why == "nothing is compiled for these programs"
    assert "kernels" not in record.seconds


def test_a_target_that_cannot_be_prepared_still_compiles_what_needs_it_not():
    class Broken(Unprepared):
        def prepare(self, needed=None):
            raise CompilerError("no compiler")

    _, record = built(Broken(), Start.WAIT)
    assert record.fallback is None


def test_steps_run_while_it_is_made():
    _, record = built(Unprepared())
    assert (record.running.start, record.running.interpreted) == (Start.TIERED, True)
    said = "until compiled ones are ready, because abele's own kernels are compiled first, once on"
    assert said in record.running.sentence()


def test_how_long_it_takes_is_expected_too(monkeypatch):
    monkeypatch.setattr("abele.compilation.estimates.expected_s", lambda *_: 1.0)
    monkeypatch.setattr("abele.compilation.estimates._first", lambda: 0.1)
    _, record = built(Unprepared())
    assert record.running.expected_s == pytest.approx((1 + 20) * (1 + 0.9 / 0.5))


def test_processes_that_cannot_ask_each_other_wait():
    _, record = built(Slow(), **TOGETHER)
    assert record.running.why == "processes that train together wait where they cannot agree"
    assert not record.running.interpreted


@pytest.fixture
def followed(monkeypatch):
    """Compiled programs of a test follow; no process makes them."""
    made = []

    def scripted(job, running, at, announce):
        made.append(Scripted(at=at))
        return made[-1]

    monkeypatch.setattr("abele.compilation.tiers.FromCompiler", scripted)
    return made


def test_all_interpret_until_compiled_programs_are_there(followed):
    gather = beside("tiered: so")
    made, record = built(Slow(), gather=gather, **TOGETHER)
    assert gather.said == ["tiered: steps run while another process compiles"]
    assert record.running.interpreted
    assert made.later is followed[0]
    assert not followed[0].closed


@pytest.mark.parametrize(
    ("said", "start", "compilations"),
    [("wait: there is no compiler", "wait", 2), ("interpret: as asked", "interpret", 0)],
)
def test_all_start_as_the_slowest_does(followed, said, start, compilations):
    target = Slow()
    made, record = built(target, gather=beside("tiered: so", said, "stored: so"), **TOGETHER)
    assert record.running.start == start
    assert record.running.why == f"like process 1: {said.partition(': ')[2]}"
    assert target.compilations == compilations
    assert followed[0].closed
    assert made.later is None


def test_a_process_that_waits_does_so_whatever_the_others_do(followed):
    gather = beside("tiered: so")
    _, record = built(Slow(), Start.WAIT, gather=gather, **TOGETHER)
    assert gather.said == ["wait: as asked"]
    assert record.running.why == "as asked"
    assert not followed


def test_what_all_have_cached_runs_at_once(isolated_cache):
    gather = beside("stored: so")
    built(Slow(), Start.WAIT, cache=isolated_cache, **TOGETHER)
    made, record = built(Slow(), cache=isolated_cache, gather=gather, **TOGETHER)
    assert gather.said[0].startswith("stored: ")
    assert made.later is None
    assert (record.cache, record.running.interpreted) == ("hit", False)
    assert record.running.why == "the programs were compiled before"


def test_what_only_some_have_cached_follows_when_all_have_it(isolated_cache):
    built(Slow(), Start.WAIT, cache=isolated_cache, **TOGETHER)
    gather = beside("tiered: so")
    made, record = built(Slow(), cache=isolated_cache, gather=gather, **TOGETHER)
    assert record.running.interpreted
    assert made.later.look().key == record.executable


def test_before_the_first_update_nothing_can_be_agreed(followed, monkeypatch):
    monkeypatch.setenv("ABELE_SWAP_AT", "0")
    _, record = built(Slow(), gather=beside("wait: so"), **TOGETHER)
    assert record.running.why.startswith("ABELE_SWAP_AT=0: processes that train together agree")
    assert not record.running.interpreted


def test_inference_asks_nobody(followed):
    def gather(text):
        raise AssertionError("processes that exchange nothing need not agree")

    config = {"processes": 2, "training": False}
    _, record = built(Slow(), gather=gather, config=config)
    assert record.running.interpreted


def test_processes_that_have_agreed_to_wait_do_not_ask_again(monkeypatch):
    """Where one has no compiler after all, it falls back alone."""
    prefer(monkeypatch, SlowWithout())
    gather = beside("tiered: so")
    with pytest.warns(FallbackWarning):
        _, record = built(None, gather=gather, **TOGETHER)
    assert record.target == "reference"
    assert gather.said == ["wait: there is no compiler"]


# -- what prevents it ----------------------------------------------------------------------


def test_what_is_cached_may_have_to_wait_for_its_update(isolated_cache, monkeypatch):
    built(Slow(), Start.WAIT, cache=isolated_cache)
    monkeypatch.setenv("ABELE_SWAP_AT", "3")
    made, record = built(Slow(), cache=isolated_cache)
    assert record.running.interpreted
    assert made.later is not None
    assert (made.later.at, record.cache) == (3, "hit")
    assert made.later.wait().key == record.executable


def test_passes_of_lowerings_must_not_change_what_a_program_takes(monkeypatch):
    def packed(program):
        slots = tuple(dataclasses.replace(slot, name=f"{slot.name}2") for slot in program.inputs)
        return program.replace(inputs=slots)

    target = Slow()
    monkeypatch.setattr(target.lowerings[0], "passes", (packed,))
    refused = "ProgramError: Program 'step' takes or gives something else after .*'kept code' than"
    with pytest.raises(LoweringError, match=refused):
        built(target, Start.WAIT)
