"""Update rules that only ``torch.optim`` has: emitted, and where exceptions are trapped."""

import pytest
import torch

from abele import Role, StepConfig
from abele.step.update_rules import FURTHER_RULES
from helpers.emitted_programs import Case, outcomes
from helpers.models import MODELS
from helpers.runs import DEFAULTS, assert_same_bits, captured, rule_for, run, started

DENSE = MODELS["dense"]
OTHERS = {"weight_decay": 0.1, "lr_decay": 0.1, "decoupled": True, "t0": 3.0, "maximize": True}
# RAdam rectifies by then, and the mean of ASGD has begun.
NUMBERS = {"step": 7.0, "mu_product": 0.25, "eta": 0.05, "mu": 0.5}


def inputs_of(program, rule):
    generator = torch.Generator().manual_seed(0)
    hyper = rule.hyper()
    given = []
    for slot in program.inputs:
        key = slot.name.rpartition(".")[2]
        if slot.role is Role.HYPER:
            value = torch.full(slot.shape, hyper[slot.name])
        elif slot.role is Role.OPTIMIZER_STATE and key in NUMBERS:
            value = torch.full(slot.shape, NUMBERS[key])
        else:
            value = torch.rand(slot.shape, generator=generator)
        given.append(value.to(slot.dtype))
    return given


def cases():
    for kind in FURTHER_RULES:
        others = {k: v for k, v in OTHERS.items() if k in DEFAULTS[kind] or k == "maximize"}
        variants = (("", ("lr",), {}, (1, 2)), (" with all", (), others, (1,)))
        for name, variable, values, accumulations in variants:
            module = DENSE.fresh()
            rule = rule_for(module, kind, variable=variable, **values)
            for accumulation in accumulations:
                config = StepConfig(gradient_accumulation=accumulation)
                for program in captured(module, DENSE.batch(), config, rule).programs:
                    if program.name != "accumulate":
                        label = f"{kind}{name}, {program.name}"
                        yield Case(label, program, inputs_of(program, rule))


@pytest.fixture(scope="module")
def emitted():
    return outcomes(list(cases()))


def test_emitted_updates_are_close_to_the_interpreted(emitted):
    assert len(emitted) == 3 * len(FURTHER_RULES)
    assert {each.name: each.difference() for each in emitted} == {
        each.name: None for each in emitted
    }


def test_no_update_leaves_an_operator_to_torch(emitted):
    assert [each.name for each in emitted if each.declined or each.foreign()] == []


@pytest.mark.parametrize(
    ("kind", "values"), [*((kind, {}) for kind in FURTHER_RULES), ("radam", {"beta2": 0.5})]
)
def test_what_a_rule_does_not_choose_is_no_exception(kind, values):
    def trained(**settings):
        module = DENSE.fresh()
        rule = rule_for(module, kind, **values)
        session, _ = started(module, DENSE.batch(), rule, StepConfig(**settings))
        return run(session, DENSE.batches(8))

    assert_same_bits(trained(trap_exceptions=True), trained())
