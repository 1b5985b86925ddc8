"""Which of several lowerings is kept: by times that the tests bring, so that no clock decides."""

import dataclasses
import platform
import sys
import zipfile
from types import SimpleNamespace

import pytest
import torch

from abele import StepConfig, build, get_target, passes
from abele.compilation import compiling, executable_file, keys
from abele.compilation.cache import CacheWarning, ExecutableCache
from abele.compilation.compiling import Way, compile_programs, fastest, made_up
from abele.compilation.portable_executable import ContainerFirst, pack
from abele.errors import CompilerError, CorruptExecutable, TargetError
from abele.ops import lstm, recurrent_loop
from abele.passes.cleanup import dead_code
from abele.storage.container import Container, write
from abele.targets import Compiled, candidates
from abele.targets.cpu.emitted.lowering import Emitted
from abele.targets.cpu.op_by_op import choice
from abele.targets.cpu.op_by_op.lowering import OpByOp
from abele.targets.reference import Interpreter
from helpers.fakes import Keeping, KeptCode
from helpers.models import MODELS
from helpers.runs import captured, resident_bytes, rule_for, started

CONFIG = StepConfig(training=False)


class Named(KeptCode):
    """One of several lowerings; ``certain`` and ``beside`` are what a test needs."""

    passes = (dead_code,)

    def __init__(self, name, beside=False):
        super().__init__()
        self.name, self._beside, self.certain = name, beside, False

    def why(self, program):
        return None if self._beside else "it takes all"

    def also_measure(self, program):
        return self._beside

    def payload(self, program):
        return f"{self.name} {program.fingerprint()}".encode()


class Several(Keeping):
    """Has two lowerings that are measured: ``usual``, and ``other`` beside it."""

    name = "several"

    def __init__(self):
        super().__init__()
        self.lowerings = (Named("other", True), Named("usual"))


@pytest.fixture
def programs():
    return captured(MODELS["dense"].fresh(), MODELS["dense"].batch(), CONFIG).programs


@pytest.fixture
def clocked(monkeypatch):
    """Makes each run take the time that is given for its lowering, in seconds."""
    monkeypatch.delenv(candidates.ENVIRONMENT, raising=False)
    ran = []

    def say(**times):
        def clock(compiled, inputs):
            name = compiled.payload.decode().split()[0]
            ran.append(name)
            return times[name]

        monkeypatch.setattr(compiling, "seconds", clock)
        return ran

    return say


def test_the_fastest_is_kept_and_the_times_are_its_reason(programs, clocked):
    clocked(usual=0.008, other=0.005)
    made, record = build(programs, CONFIG, target=Several())
    (chosen,) = record.lowerings.values()
    assert (chosen.name, chosen.reason) == ("other", "measured: 5 ms other, 8 ms usual")
    assert made.compiled["forward"].payload.startswith(b"other")
    assert made.key_parts["lowerings"] == {"forward": ["usual", "other"]}
    assert made.lowering("forward").name == "other"
    assert made.programs[0].history[-1].by == "dead_code"


def test_what_the_rules_say_stays_unless_another_is_clearly_faster(programs, clocked):
    clocked(usual=0.00500, other=0.00490)
    _, record = build(programs, CONFIG, target=Several())
    assert record.lowerings["forward"].name == "usual"
    assert record.lowerings["forward"].reason == "measured: 4.9 ms other, 5 ms usual"


def test_what_came_from_the_cache_was_measured_before(programs, clocked, tmp_path):
    ran = clocked(usual=0.008, other=0.005)
    first, record = build(programs, CONFIG, target=Several(), cache=ExecutableCache(tmp_path))
    del ran[:]
    again, other = build(programs, CONFIG, target=Several(), cache=ExecutableCache(tmp_path))
    assert (other.cache, other.lowerings, ran) == ("hit", record.lowerings, [])
    assert again.compiled["forward"].payload == first.compiled["forward"].payload
    assert again.lowering("forward").name == "other"
    assert again.programs[0].fingerprint() == first.programs[0].fingerprint()


def test_what_is_measured_beside_may_fail_to_compile(programs, clocked, monkeypatch):
    clocked(usual=0.008)
    target = Several()

    def fail(program):
        raise CompilerError("no kernels", log="")

    monkeypatch.setattr(target.lowerings[0], "compile", fail)
    _, record = build(programs, CONFIG, target=target)
    assert record.lowerings["forward"].name == "usual"


def test_a_bug_of_what_is_measured_beside_is_reported(programs, clocked, monkeypatch):
    clocked(usual=0.008)
    target = Several()
    monkeypatch.setattr(target.lowerings[0], "compile", lambda program: {}["a kernel"])
    said = "'other' is not timed.*'forward'.*KeyError: 'a kernel'.*`abele doctor --json`"
    with pytest.warns(RuntimeWarning, match=said):
        _, record = build(programs, CONFIG, target=target)
    assert record.lowerings["forward"].name == "usual"


def test_an_executable_that_does_not_say_which_is_made_again(programs, clocked, tmp_path):
    clocked(usual=0.008, other=0.005)
    made, _ = build(programs, CONFIG, target=Several())
    path = tmp_path / "x.abele"
    executable_file.save(dataclasses.replace(made, chosen={}), path)
    with pytest.raises(CorruptExecutable, match="which lowering program 'forward' has is not said"):
        executable_file.load(path, programs, made.key_parts, made.target)


def test_the_environment_decides_without_a_clock(programs, clocked, monkeypatch):
    ran = clocked()
    for asked, name in {"other": "other", "usual": "usual", "rules": "usual"}.items():
        monkeypatch.setenv(candidates.ENVIRONMENT, asked)
        made, _ = build(programs, CONFIG, target=Several())
        assert made.key_parts["lowerings"] == {"forward": name}
    assert not ran


def test_the_environment_names_those_to_measure(programs, clocked, monkeypatch):
    clocked(usual=0.005, other=0.008)
    monkeypatch.setenv(candidates.ENVIRONMENT, "other, usual")
    _, record = build(programs, CONFIG, target=Several())
    assert record.lowerings["forward"].reason == ("measured: 5 ms usual, 8 ms other")


def test_a_lowering_that_does_not_exist_is_refused(programs, monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, "fast")
    with pytest.raises(TargetError, match=r"ABELE_LOWERING='fast' was found.*other, usual, sever"):
        build(programs, CONFIG, target=Several())


def test_a_lowering_that_cannot_run_a_program_is_refused(programs, monkeypatch):
    target = Several()
    monkeypatch.setattr(target.lowerings[0], "why_not", lambda program: "it has loops")
    monkeypatch.setenv(candidates.ENVIRONMENT, "other")
    with pytest.raises(TargetError, match=r"'other' cannot run program 'forward': it has loops"):
        build(programs, CONFIG, target=target)


def test_processes_that_train_together_do_what_the_rules_say(programs, clocked):
    ran = clocked()
    config = StepConfig(training=False, processes=2)
    made, _ = build(programs, config, target=Several())
    assert made.key_parts["lowerings"] == {"forward": "usual"}
    assert not ran


def test_a_program_with_effects_runs_only_when_the_user_runs_it(clocked, monkeypatch):
    ran = clocked()
    module = torch.nn.Identity()
    module.forward = lambda x: torch.ops.abele_tests_measured.once(x)
    once = torch.library.custom_op(
        "abele_tests_measured::once",
        lambda x: x * 2,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    once.register_fake(torch.empty_like)
    made, _ = build(captured(module, [torch.ones(2)], CONFIG).programs, CONFIG, target=Several())
    assert made.key_parts["lowerings"] == {"forward": "usual"}
    assert not ran


def test_measuring_leaves_random_numbers_as_they_were(monkeypatch):
    monkeypatch.delenv(candidates.ENVIRONMENT, raising=False)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    programs = captured(module.train(), [torch.ones(2, 4)], StepConfig(training=False)).programs
    before = torch.get_rng_state()
    compile_programs(
        Several(), programs, keys.key_parts(programs, CONFIG, Several(), BOTH), clocked=_drawn
    )
    assert torch.equal(torch.get_rng_state(), before)


BOTH = {"forward": ["usual", "other"]}


def _drawn(compiled, inputs):
    torch.rand(1)
    return 0.01


def ways(programs):
    return [Way(name=n, program=programs[0], compiled=Compiled(list, n.encode())) for n in "ab"]


def test_short_runs_are_timed_without_packing(monkeypatch):
    now = 0.0

    def taking(seconds):
        def run(inputs):
            nonlocal now
            now += seconds
            return []

        return run

    monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=lambda: now))
    compiled = Compiled(taking(1e-3))
    monkeypatch.setattr(
        compiled, "with_state", lambda arguments, adopted: taking(1e-3 if adopted else 1e-4)
    )
    assert compiling.seconds(compiled, []) == pytest.approx(1e-4)
    assert now == pytest.approx(1e-3 + 1e-4 + compiling._SHORT_S, abs=1e-4)
    assert compiling.seconds(compiled, [], adopts=True) == pytest.approx(1e-3)
    compiled.run = taking(1.0)
    assert compiling.seconds(compiled, []) == pytest.approx(1.0)


def test_runs_stop_when_the_budget_is_spent(programs):
    ran = []

    def clock(compiled, inputs):
        ran.append(compiled.payload)
        return 0.015

    fastest(ways(programs), 0.0, clock)
    assert 0.17 < (len(ran) - 2) * 0.015 <= 0.2  # beside one of each, which finds no memory ready
    del ran[:]
    fastest(ways(programs), 1000.0, clock)
    assert len(ran) == 16  # more tell nothing


def test_a_run_that_takes_too_long_is_the_only_one(programs):
    way, why = fastest(ways(programs), 1.0, lambda compiled, inputs: 3.0)
    assert (way.name, why) == ("a", "not measured, because a run takes 3.0 s")


def test_first_runs_say_nothing(programs):
    times = {b"a": [0.7, *[0.3] * 8], b"b": [0.9, *[0.1] * 8]}  # a is sooner ready, and slower
    assert fastest(ways(programs), 20.0, lambda c, i: times[c.payload].pop(0))[0].name == "b"


def test_what_is_much_slower_is_not_run_again_and_then_nothing_is(programs):
    ran = []

    def clock(compiled, inputs):
        ran.append(compiled.payload)
        return {b"a": 0.01, b"b": 0.03}[compiled.payload]

    assert fastest(ways(programs), 1.0, clock)[0].name == "a"
    assert (ran.count(b"a"), ran.count(b"b")) == (3, 2)


def test_a_long_run_that_began_much_slower_is_not_made_again(programs):
    queue = [0.4, 0.3, 0.2]
    way, words = fastest(ways(programs), 1.0, lambda c, i: queue.pop(0))
    assert (way.name, words, queue) == ("a", "measured: 200 ms a, 300 ms b", [])
    queue = [0.4, 0.25, 0.2, 0.19]  # the first run of b says too little
    way, words = fastest(ways(programs), 1.0, lambda c, i: queue.pop(0))
    assert (way.name, words, queue) == ("a", "measured: 190 ms b, 200 ms a", [])


def test_one_run_of_each_has_to_be_clearer(programs):
    queue = [0.3, 0.3, 0.25, 0.2]
    assert fastest(ways(programs), 1.0, lambda c, i: queue.pop(0))[0].name == "a"


@pytest.mark.parametrize(
    ("again", "name", "why"),
    [
        ([0.2, 0.1], "b", "measured: 100 ms b, 200 ms a"),
        ([0.1, 0.098], "a", "measured: 98 ms b, 100 ms a"),  # the first run of a was disturbed
    ],
)
def test_what_speaks_against_the_first_is_measured_once_more(programs, again, name, why):
    queue = [0.3, 0.3, 0.25, 0.15, *again]
    way, words = fastest(ways(programs), 1.0, lambda c, i: queue.pop(0))
    assert (way.name, words, queue) == (name, why, [])


@pytest.mark.parametrize("refusing", ["a", "b"])
def test_what_refuses_made_up_inputs_is_not_measured(programs, refusing):
    def clock(compiled, inputs):
        if compiled.payload == refusing.encode():
            raise RuntimeError("ZeroDivisionError\nat an operator")
        return 0.01

    way, why = fastest(ways(programs), 1.0, clock)
    assert way.name == "a"
    assert why == (
        "not measured, because made-up inputs do not suit it (RuntimeError: ZeroDivisionError)"
    )


def test_state_that_is_too_large_is_not_made_twice(programs, monkeypatch):
    monkeypatch.setattr(compiling, "_LARGEST_BYTES", 8)
    way, why = fastest(ways(programs), 1.0)
    assert way.name == "a"
    assert why == "not measured, because its inputs take 0.0 GiB"


def test_inputs_are_made_up_for_every_slot():
    module, batch = MODELS["dense"].fresh(), MODELS["dense"].batch()
    (step,) = captured(module, batch, StepConfig(), rule_for(module, "adam")).programs
    for slot, value in zip(step.inputs, made_up(step), strict=True):
        assert (tuple(value.shape), value.dtype) == (slot.shape, slot.dtype)


@pytest.mark.skipif(
    sys.platform != "linux" or "glibc" not in platform.libc_ver(), reason="only glibc trims"
)
def test_memory_that_was_freed_goes_back_to_the_system():
    pieces = [bytearray(100_000) for _ in range(1000)]  # too small to be mapped one by one
    kept = pieces[-1]
    before = resident_bytes()
    del pieces
    compiling.return_memory()
    assert kept
    assert before - resident_bytes() > 50_000_000


@pytest.mark.parametrize(
    ("layer", "edge", "beside"),
    [
        (torch.nn.Linear(128, 6), 128, False),
        (torch.nn.Conv2d(3, 3, 5, padding=2), 8, False),  # emitted code calls the same kernel
        (torch.nn.BatchNorm2d(3), 512, True),
        (torch.nn.BatchNorm2d(3), 16, False),
        (torch.nn.UpsamplingBilinear2d(scale_factor=2), 512, True),
        (torch.nn.MaxPool2d(2), 512, False),
    ],
)
def test_operator_by_operator_is_measured_where_its_kernels_have_work(layer, edge, beside):
    (program,) = captured(layer, [torch.rand(2, 3, edge, edge)], CONFIG).programs
    assert OpByOp().also_measure(program) is beside


def test_it_is_measured_where_it_has_another_kernel_for_a_convolution(monkeypatch):
    monkeypatch.setattr(choice, "kernel_of", lambda node: "conv" in str(node.target) or None)
    (program,) = captured(torch.nn.Conv2d(3, 3, 5), [torch.rand(2, 3, 8, 8)], CONFIG).programs
    assert OpByOp().also_measure(program)


# -- code that is loaded with its plan: no pass of a lowering runs for it --------------------------


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
    first, made, target = built()
    assert target.counts() == [(1, 1, 0), (1, 1, 0)]
    again, record, target = built()
    assert (record.cache, record.lowerings) == ("hit", made.lowerings)
    assert record.declined == made.declined
    assert target.counts() == [(0, 0, 1), (0, 0, 0)]
    assert [each.asked for each in target.lowerings] == [0, 0]
    assert again.compiled["forward"].plan == first.compiled["forward"].plan == PLAN


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
