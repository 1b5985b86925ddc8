"""Who computes each operator, and why: every operator has an answer, and it is the one that ran."""

from collections import Counter

import pytest
import torch

from abele import passes
from abele.ops import recurrent_loop
from abele.program import is_view
from abele.report import facts, timing
from abele.targets import candidates, get_target
from abele.targets.cpu.emitted.clocked import kernel_of
from abele.targets.cpu.emitted.lowering import planned_code
from abele.targets.kernel_choice import NOBODY, reason
from helpers.models import MODELS
from helpers.reported import recorded
from helpers.runs import rule_for, started

aten = torch.ops.aten
CPU = get_target("cpu")
WAYS = [
    "interpreter",
    *(pytest.param(w, marks=pytest.mark.compiler) for w in ("op_by_op", "emitted")),
]


def session_of(way, name, monkeypatch):
    if way != "interpreter":
        reason = CPU.cannot_compile()
        if reason is not None:
            pytest.skip(reason)
        monkeypatch.setenv(candidates.ENVIRONMENT, way)
    model = MODELS[name]
    module = model.fresh()
    target = get_target("reference") if way == "interpreter" else CPU
    return started(module, model.batch(), rule_for(module), target=target)


@pytest.mark.parametrize("name", ["introduction", "dense"])
@pytest.mark.parametrize("way", WAYS)
def test_every_operator_has_the_computer_that_is_timed(way, name, monkeypatch):
    session, record = session_of(way, name, monkeypatch)
    run = timing.timed(recorded(session, record), session.executable, session, budget_s=0)
    (program,) = run.programs
    counted, chosen, timed = Counter(), Counter(), Counter()
    for each in program.operators:
        counted[each.name, each.phase] += each.count
    for each in program.choices:
        assert each.why
        chosen[each.operator, each.phase] += each.count
    assert chosen == counted
    for kernel in program.timing.kernels:
        for operator, _ in kernel.operators:
            timed[operator, kernel.what] += 1
    for each in program.choices:
        assert each.by == NOBODY or timed[each.operator, each.by], each


def test_a_program_says_who_declined_it_and_why(monkeypatch):
    monkeypatch.setenv(candidates.ENVIRONMENT, candidates.RULES)
    model = MODELS["dense"]
    module = model.fresh()
    session, record = started(module, model.batch(), rule_for(module))
    (program,) = session.executable.programs
    lowering, _ = CPU.choose(program)
    declined = CPU.why_not_chosen(program, lowering)
    assert declined["op_by_op"].endswith("and is no large update")
    assert set(declined) == {each.name for each in CPU.lowerings[: CPU.lowerings.index(lowering)]}
    record.declined = {program.name: declined}
    (known,) = facts.programs(session.executable, record)
    assert known.declined == declined


def computed_by(operator, module, x, way):
    session, _ = started(module, (x,), None)
    lowering = CPU.lowering(way)
    program = passes.run_only(session.executable.programs[0], lowering.passes)
    chosen = lowering.kernel_choices(program).items()
    return [each for node, each in chosen if node.target is operator]


class Doubled(torch.nn.Module):
    """Images twice as large, by a kernel of ours, and larger yet, by the library's."""

    def forward(self, x):
        larger = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        return torch.nn.functional.interpolate(larger, scale_factor=3, mode="bilinear").sum()


def test_upsampling_is_said_to_be_ours_where_it_is():
    operator = aten.upsample_bilinear2d.default
    by = computed_by(operator, Doubled(), torch.ones(2, 8, 4, 4), "op_by_op")
    assert by == ["upsample", "torch"]


class Separable(torch.nn.Module):
    """A depthwise convolution, and one of 1x1."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.Conv2d(16, 32, 1)
        )

    def forward(self, x):
        return self.layers(x).sum()


def test_our_ways_of_planes_are_said_to_be_ours():
    ours = computed_by(aten.convolution.default, Separable(), torch.ones(2, 16, 10, 10), "emitted")
    assert ours == ["abele_depthwise_forward", "abele_product"]
    assert "a kernel for each channel" in reason(ours[0])


class Last(torch.nn.Module):
    """What an LSTM has after the last step."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LSTM(8, 16)

    def forward(self, x):
        return self.layer(x)[0][-1].sum()


def test_an_lstm_is_computed_by_its_loop_and_not_by_what_packs_its_weight():
    session, _ = started(Last(), (torch.ones(6, 8, 8),), None)
    lowering = CPU.lowering("emitted")
    program = passes.run_only(session.executable.programs[0], lowering.passes)
    chosen = lowering.kernel_choices(program).items()
    (loop,) = (each for node, each in chosen if node.target is recurrent_loop.forward)
    assert loop == "abele_recurrent"
    assert "all time steps" in reason(loop)
    plan = planned_code(program)
    kernels = tuple(kernel_of(unit, plan.kept) for unit in plan.units)
    parts = timing._parts_of_nodes(kernels)
    work = {each.what: timing._work(each, parts) for each in kernels}
    assert (work["abele_product_pack"], work["abele_recurrent"]) == (0, 2 * 6 * 8 * 4 * 16 * 16)


def test_what_one_kernel_does_of_several_operators_is_said_of_all_of_them():
    model = MODELS["introduction"]
    module = model.fresh()
    batch = [each.repeat(4, *[1] * (each.dim() - 1)) for each in model.batch()]
    session, _ = started(module, batch, rule_for(module))
    lowering = CPU.lowering("emitted")
    program = passes.run_only(session.executable.programs[0], lowering.passes)
    chosen = lowering.kernel_choices(program)
    assert {each for node, each in chosen.items() if not is_view(node)}.isdisjoint({NOBODY})
    pooled = {str(node.target) for node, each in chosen.items() if each == "abele_conv_pool"}
    assert {"aten.convolution.default", "aten.max_pool2d_with_indices.default"} <= pooled
