"""What records say of an optimizer: its values, what changes between calls, and its section."""

import dataclasses
import math

import pytest

from abele.report import comparison, read_run
from abele.report import optimizer as optimizers
from abele.report.journal import Journal
from abele.report.optimizer import Change, Optimizer, ParameterGroup, changed, optimizer_of
from abele.report.page import page
from abele.report.run_differences import of_optimizers
from abele.step.update_rules import Group, UpdateRule
from helpers.reported import journal_of, run_before


def of(*rates, name="torch.optim.SGD", changes=(), left_out=0, **values):
    """An optimizer with a group per rate."""
    groups = tuple(ParameterGroup(parameters=2, values={"lr": e, "momentum": 0.9}) for e in rates)
    made = tuple(Change(calls=calls, values=given) for calls, given in changes)
    return Optimizer(name=name, groups=groups, values=values, changes=made, left_out=left_out)


def run_with(optimizer, **more):
    return dataclasses.replace(run_before(), optimizer=optimizer, **more)


def test_a_rule_gives_its_values_by_group():
    groups = (
        Group(params=("a", "b"), values={"lr": 0.1, "nesterov": True}, variable=frozenset(["lr"])),
        Group(params=("c",), values={"lr": 0.2, "nesterov": False}),
    )
    rule = UpdateRule(kind="sgd", groups=groups, max_grad_norm=0.5, loss_scaling=8.0)
    known = optimizer_of(rule, "torch.optim.SGD", {"group0.lr": 0.05})
    assert known.name == "torch.optim.SGD"
    assert [each.parameters for each in known.groups] == [2, 1]
    assert known.groups[0].values == {"lr": 0.05, "nesterov": 1.0}
    assert known.values == {"loss_scaling": 8.0, "max_grad_norm": 0.5}
    plain = optimizer_of(UpdateRule(kind="sgd", groups=groups), "sgd", {})
    assert plain.values == {}
    assert math.isinf(UpdateRule(kind="sgd", groups=groups).max_grad_norm)


def test_what_is_set_before_the_first_call_is_what_it_begins_with():
    assert changed(of(0.1), of(0.2), calls=0) == of(0.2)


def test_only_what_changes_is_kept():
    known = changed(of(0.1, 0.3), of(0.1, 0.2), calls=7)
    assert known.changes == (Change(calls=7, values={"group1.lr": 0.2}),)
    assert changed(known, of(0.1, 0.2), calls=9) == known
    again = changed(known, of(0.4, 0.2), calls=7)  # no call was made in between
    assert again.changes == (Change(calls=7, values={"group1.lr": 0.2, "group0.lr": 0.4}),)
    assert again.latest() == {
        "group0.lr": 0.4, "group0.momentum": 0.9, "group1.lr": 0.2, "group1.momentum": 0.9,
    }  # fmt: skip


def test_of_many_changes_the_first_and_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(optimizers, "KEPT", 3)
    known = of(1.0)
    for calls in range(1, 9):
        known = changed(known, of(1.0 / (1 + calls)), calls)
    assert [each.calls for each in known.changes] == [1, 2, 3, 8]
    assert (known.left_out, known.known_calls()) == (4, 3)
    assert known.latest()["group0.lr"] == 1 / 9


def test_a_record_has_them(tmp_path):
    run = run_with(of(0.1, changes=[(3, {"group0.lr": 0.05})], max_grad_norm=1.0))
    run.write(tmp_path)
    assert read_run(tmp_path) == run


# -- two runs ------------------------------------------------------------------------------


def differences(one, other, calls=(20, 20), iterations=(1, 1)):
    files = [
        (run_with(each, configuration={"device_iterations": a_call}), journal_of(calls=count))
        for each, a_call, count in zip((one, other), iterations, calls, strict=True)
    ]
    return [(each.what, each.first, each.second) for each in of_optimizers(*files)]


HALF = [(4, {"group0.lr": 0.05})]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (of(0.1), of(0.1), []),
        (of(0.1), of(0.2), [("lr", "0.1", "0.2")]),
        (of(0.1, 0.3), of(0.1, 0.4), [("lr of group 1", "0.3", "0.4")]),
        (of(0.1), of(0.1, 0.1), [("groups of parameters", "1", "2")]),
        (of(0.1), of(0.1, name="poptorch.optim.SGD"), [
            ("class", "torch.optim.SGD", "poptorch.optim.SGD")
        ]),
        (of(0.1), of(0.1, max_grad_norm=0.5), [("max_grad_norm", "not there", "0.5")]),
        (of(0.1), of(0.1, changes=HALF), [("lr, from update 5", "0.1", "0.05")]),
        (of(0.1, changes=HALF), of(0.1, changes=HALF), []),
        (of(0.1, changes=HALF), of(0.1, changes=[*HALF, (6, {"group0.lr": 0.01})]), [
            ("lr, from update 7", "0.05", "0.01")
        ]),
        (of(0.1, changes=[(2, {"group0.lr": 0.2}), (4, {"group0.lr": 0.1})]), of(0.1), [
            ("lr, from update 3", "0.2", "0.1")
        ]),
        (of(0.1 + 0.2), of(0.3), [("lr", "0.30000000000000004", "0.3")]),
        (of(0.1 + 0.2), of(0.4), [("lr", "0.3", "0.4")]),
        (None, of(0.1), []),
    ],
)  # fmt: skip
def test_the_first_difference_of_each_value_is_named(one, other, expected):
    assert differences(one, other) == expected


def test_a_rate_is_named_before_all_else():
    other = ParameterGroup(parameters=2, values={"betas": 1.0, "lr": 0.2, "momentum": 0.8})
    said = differences(of(0.1), dataclasses.replace(of(0.1), groups=(other,)))
    assert [what for what, *_ in said] == ["lr", "momentum", "betas"]


def test_values_are_compared_as_far_as_both_runs_came():
    assert differences(of(0.1), of(0.1, changes=HALF), calls=(4, 20)) == []
    assert differences(of(0.1), of(0.1, changes=HALF), calls=(20, 4)) == []


def test_values_of_updates_are_compared_not_of_calls():
    half = of(0.1, changes=[(2, {"group0.lr": 0.05})])
    assert differences(of(0.1, changes=HALF), half, iterations=(1, 2)) == []
    assert differences(of(0.1, changes=HALF), half, iterations=(2, 2)) == [
        ("lr, from update 5", "0.1", "0.05")
    ]


def test_what_was_left_out_is_not_compared(monkeypatch):
    monkeypatch.setattr(optimizers, "KEPT", 1)
    one = of(0.1, changes=[(1, {"group0.lr": 0.2}), (9, {"group0.lr": 0.3})], left_out=3)
    assert differences(one, of(0.1, changes=[(1, {"group0.lr": 0.2})])) == []


def test_two_runs_begin_with_a_changed_rate():
    files = [(run_with(of(rate)), Journal()) for rate in (0.1, 0.2)]
    text = str(comparison.compare(*files, ("first", "second")))
    assert "Optimizer: 1 difference.\n  lr: 0.1 and 0.2\nOptions: no difference." in text


# -- one run -------------------------------------------------------------------------------


def test_the_page_of_a_run_has_its_values_and_their_changes():
    text = page(run_with(of(0.1, 0.3, changes=HALF, max_grad_norm=0.5)), journal_of())
    section = text[text.index('id="optimizer"') :]
    section = section[: section.index("</section>")]
    for said in ("torch.optim.SGD", "0.1", "0.3", "0.9", "max_grad_norm", "0.5", "from call"):
        assert said in section
    assert "1 change, the last before call 5: group0.lr 0.05." in section
    assert 'href="#optimizer"' in text
    assert 'id="optimizer"' not in page(run_with(None), journal_of())


def test_changes_that_are_not_kept_are_counted():
    known = of(0.1, changes=HALF, left_out=30)
    text = page(run_with(known), journal_of())
    assert "31 changes, the last before call 5: group0.lr 0.05. 30 before the last are" in text
