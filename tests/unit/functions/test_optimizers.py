"""Numbers of optimizers: which are slots, and what else in them a program depends on."""

import threading

import pytest
import torch

from abele.errors import CaptureError
from abele.functions.optimizers import NotYetError, Numbers, TracedSteps


def trained(kind=torch.optim.AdamW, **options):
    """An optimizer whose state exists."""
    params = [torch.nn.Parameter(torch.ones(size)) for size in (2, 3)]
    optimizer = kind([{"params": [each]} for each in params], **options)
    for each in params:
        each.grad = torch.ones_like(each)
    optimizer.step()
    return optimizer


def numbers(optimizer, *variable):
    return Numbers(optimizer, "optimizer0", frozenset({"lr", *variable}))


def written(kept):
    """The slots that follow the optimizer's numbers now."""
    slots = {}
    kept.follow(slots.__setitem__)
    return slots


def test_a_changed_learning_rate_is_written_to_its_slot():
    optimizer = trained(lr=0.5)
    kept = numbers(optimizer)
    assert kept.changed() == (set(), set())
    assert written(kept) == {"optimizer0.group0.lr": 0.5, "optimizer0.group1.lr": 0.5}
    optimizer.param_groups[1]["lr"] = 0.25
    assert kept.changed() == ({"lr"}, set())
    assert written(kept) == {"optimizer0.group1.lr": 0.25}
    assert kept.changed() == (set(), set())
    assert written(kept) == {}


def test_other_numbers_are_constants_unless_promoted():
    optimizer = trained()
    constant, promoted = numbers(optimizer), numbers(optimizer, "betas", "weight_decay")
    optimizer.param_groups[0].update(betas=(0.5, 0.75), weight_decay=2)
    assert constant.changed() == (set(), {"betas", "weight_decay"})
    assert promoted.changed() == ({"betas", "weight_decay"}, set())
    slots = written(promoted)
    first = {name: value for name, value in slots.items() if "group0" in name}
    assert first == {
        "optimizer0.group0.lr": 0.001,
        "optimizer0.group0.beta1": 0.5,
        "optimizer0.group0.beta2": 0.75,
        "optimizer0.group0.weight_decay": 2.0,
    }


def test_a_number_of_another_type_is_a_change():
    optimizer = trained(maximize=False)
    kept = numbers(optimizer)
    optimizer.param_groups[0].update(lr=True, maximize=0)
    assert kept.changed() == ({"lr"}, {"maximize"})
    with pytest.raises(CaptureError, match=r"lr=True; a program needs a number\. Pass a float"):
        written(kept)


def test_further_entries_of_a_group_are_a_change():
    optimizer = trained()
    kept = numbers(optimizer)
    optimizer.param_groups[0]["name"] = "first"
    assert kept.changed()[1] == {"param_groups"}


def more():
    return torch.nn.Parameter(torch.ones(1))


def replaced_entry(optimizer):
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state["exp_avg"] = torch.zeros(2)


CHANGES = {
    "a group": lambda o: o.add_param_group({"params": [more()]}),
    "a group less": lambda o: o.param_groups.pop(),
    "a parameter": lambda o: o.param_groups[0]["params"].append(more()),
    "a parameter less": lambda o: o.param_groups[0]["params"].pop(),
    "another parameter": lambda o: o.param_groups[0]["params"].__setitem__(0, more()),
    "groups in another order": lambda o: o.param_groups.reverse(),
    "loaded state": lambda o: o.load_state_dict(o.state_dict()),
    "no state": lambda o: o.state.clear(),
    "state of one parameter less": lambda o: o.state.popitem(),
    "a replaced entry": replaced_entry,
    "an entry less": lambda o: next(iter(o.state.values())).pop("step"),
    "other parameters": lambda o: o.param_groups[0].update(params=[more()]),
    "an equal group": lambda o: o.param_groups.append({**o.param_groups.pop()}),
    "a step of its own": lambda o: setattr(o, "step", print),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_other_parameters_and_objects_of_state_are_seen(change):
    optimizer = trained()
    kept = numbers(optimizer)
    assert kept.serves(print)
    assert kept.serves(print)  # without a look at each entry
    change(optimizer)
    assert not kept.serves(print)


def test_numbers_of_many_parameters_are_followed():
    optimizer, slots = torch.optim.SGD([more() for _ in range(300)], lr=0.5, nesterov=False), {}
    kept = numbers(optimizer)
    assert kept.serves(slots.__setitem__)
    optimizer.param_groups[0]["lr"] = 0.25
    assert kept.serves(slots.__setitem__)
    assert slots == {"optimizer0.group0.lr": 0.25}
    optimizer.param_groups[0]["nesterov"] = True
    assert not kept.serves(slots.__setitem__)
    assert not kept.serves(slots.__setitem__)


def test_state_may_be_written_in_place():
    optimizer = trained()
    kept = numbers(optimizer)
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
    optimizer.step()
    assert kept.has_same_state()


def steps(**options):
    return TracedSteps(lambda tensor: tensor, {}, [], **options)


def test_a_step_without_state_waits_for_the_first():
    param = more()
    optimizer = torch.optim.Adam([param])
    param.grad = torch.ones(1)
    with (
        steps().replaced(),
        pytest.raises(NotYetError, match=r"Adam has no \w+ of a parameter yet"),
    ):
        optimizer.step()
    assert not optimizer.state
    assert param.item() == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"capturable": True}, "capturable, fused or foreach set"),
        ({"fused": True}, "capturable, fused or foreach set"),
    ],
)
def test_options_that_no_program_follows(options, reason):
    param = more()
    optimizer = torch.optim.Adam([param], **options)
    param.grad = torch.ones(1)
    with steps().replaced(), pytest.raises(CaptureError, match=reason):
        optimizer.step()


def test_a_scheduler_in_a_trace_is_noted_and_does_not_step():
    optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    noted = steps()
    with noted.replaced():
        scheduler.step()
        with pytest.raises(CaptureError, match="steps after its scheduler in the same call"):
            optimizer.step()
    assert [(each, place) for each, place, *_ in noted.schedules] == [(scheduler, 0)]
    assert optimizer.param_groups[0]["lr"] == 0.001
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0001)


def test_a_parameter_of_another_type_is_refused():
    param = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    param.grad = torch.ones_like(param)
    with steps().replaced(), pytest.raises(CaptureError, match=r"parameters of torch\.float16"):
        torch.optim.SGD([param]).step()


def test_a_step_of_another_thread_is_its_own():
    optimizer = trained(torch.optim.SGD, lr=1.0)
    with steps().replaced():
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()
    assert optimizer.param_groups[0]["params"][0].tolist() == [-1.0, -1.0]
