"""Functions are divided into a traced part and statements that Python runs at each call."""

import threading

import pytest
import torch

from abele.errors import CaptureError
from abele.functions.division import divide
from abele.functions.frames import Frames
from abele.functions.host import Held, HeldAttribute

LOG: list = []
COUNT = [0]
MODEL = torch.nn.Linear(2, 1)


@pytest.fixture(autouse=True)
def empty():
    LOG.clear()
    COUNT[0] = 0


@pytest.fixture
def x():
    return torch.tensor([1.0, 2.0])


def divided(function, lines=(), changed=()):
    host = divide(function, dict.fromkeys(lines, False), changed, Frames(None))
    assert host is not None
    return host


def called(host, *arguments):
    """A call in two parts, as a program makes it."""
    host.events.clear()
    result = host.remaining(*arguments)
    assert not LOG  # the traced part has no effects
    return host.run(host.events, result, lambda place: None)


def traced(x):
    y = x * 2
    return y.sum()


def late(x):
    y = x * 2
    LOG.append(y.sum().item())
    return y


def early(x):
    LOG.append(x.sum().item())
    x.add_(1)
    return x


def in_a_loop(x):
    for _ in range(3):
        x = x * 2
        LOG.append(x.sum().item())
    return x


def under_a_condition(x, wanted):
    x = x * 2
    LOG.append(x.sum().item() if wanted else None)
    return x


def returns_a_number(x):
    value = x.sum().item()
    half = value / 2
    return {"value": value, "half": half}


def fills_a_list(x):
    values = []
    values.append(x.sum().item())
    values.append(x[1].item())
    return sum(values)


def test_a_function_without_numbers_is_not_divided():
    assert divide(traced, {}, (), Frames(None)) is None


@pytest.mark.parametrize("function", [lambda x: x.item(), torch.sin, abs])
def test_what_has_no_statements_is_not_divided(function):
    assert divide(function, {}, (), Frames(None)) is None


def test_a_statement_at_the_end_runs_at_its_place(x):
    host = divided(late)
    assert host.late == [True]
    assert torch.equal(called(host, x), 2 * x)
    assert LOG == [6.0]


def test_an_earlier_statement_has_the_values_of_its_place(x):
    host = divided(early)
    assert host.late == [False]
    assert called(host, x) is x
    assert LOG == [3.0]
    assert x.tolist() == [2.0, 3.0]


def test_tensors_that_a_statement_reads_are_computed_in_the_traced_part(x):
    host = divided(late)
    host.remaining(x)
    ((_, variables),) = host.events
    (hoisted,) = variables.values()
    assert torch.equal(hoisted, torch.tensor(6.0))


@pytest.mark.parametrize("wanted", [True, False])
def test_what_depends_on_a_condition_is_not_computed_before(x, wanted):
    host = divided(under_a_condition)
    called(host, x, wanted)
    ((_, variables),) = host.events
    assert set(variables) == {"x", "wanted"}
    (logged,) = LOG
    assert logged == (6.0 if wanted else None)


def test_variables_of_the_host_go_from_statement_to_statement(x):
    host = divided(returns_a_number)
    assert host.remaining(x) is None
    assert isinstance(host.events[1][1]["value"], Held)
    assert called(host, x) == {"value": 3.0, "half": 1.5}


def test_containers_of_the_function_are_filled_anew_in_each_call(x):
    host = divided(fills_a_list)
    assert [called(host, x), called(host, x)] == [5.0, 5.0]


def test_the_caller_hears_of_each_event_before_it_runs(x):
    host, places = divided(in_a_loop), []
    result = host.remaining(x)
    host.run(host.events, result, lambda place: places.append((place, len(LOG))))
    assert places == [(0, 0), (1, 1), (2, 2), (3, 3)]


# -- what forbids a division -------------------------------------------------------


def backward_by_a_number(x):
    loss = x.sum()
    (loss * loss.item()).backward()


def draws(x):
    LOG.append(x.sum().item() + torch.rand(()).item())
    return x


def tries(x):
    try:
        LOG.append(x.sum().item())
    finally:
        x = x * 2
    return x


def ends_early(x, wanted):
    if wanted:
        return x.sum().item()
    return x.sin()


def reads_its_counter(x):
    COUNT[0] += 1
    return x * COUNT[0]


def logs_a_module(x):
    LOG.append((x.sum().item(), MODEL))
    return MODEL(x)


@pytest.mark.parametrize(
    ("function", "line", "reason"),
    [
        (backward_by_a_number, 2, "computes gradients with the value of a tensor"),
        (draws, 1, "draws random numbers besides those of the program"),
        (tries, 1, "is a try, in a function with numbers of tensors"),
        (ends_early, 1, "ends the call early by the value of a tensor"),
        (reads_its_counter, 1, "changes an object that is read afterwards"),
        (logs_a_module, 1, "uses MODEL before the function goes on to change it"),
    ],
)
def test_a_refusal_names_the_line(function, line, reason):
    place = rf"test_host\.py:{function.__code__.co_firstlineno + line}"
    with pytest.raises(CaptureError, match=f"The statement at .*{place} {reason}"):
        divide(function, {}, {"COUNT"}, Frames(None))


def logs_a_variable(x):
    model = MODEL
    LOG.append((x.sum().item(), model))
    return model(x)


def test_objects_with_tensors_are_refused_when_they_are_recorded(x):
    host = divided(logs_a_variable)
    with pytest.raises(CaptureError, match="uses model before the function goes on to change it"):
        host.remaining(x)


def loops_by_a_number(x):
    count = x.sum().item()
    for _ in range(count):
        x = x * 2
    return x


def test_the_traced_part_cannot_compute_with_a_held_number(x):
    line = loops_by_a_number.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=f"computes with count, which line {line} sets"):
        divided(loops_by_a_number).remaining(x)


@pytest.mark.parametrize(
    "compute",
    [bool, float, int, len, iter, lambda h: h + 1, lambda h: 2 * h, lambda h: h < 1, lambda h: h.T],
)
def test_nothing_computes_with_a_held_value(compute):
    with pytest.raises(CaptureError, match="computes with loss, which line 7 sets"):
        compute(Held("loss", 7))


def test_other_threads_read_the_value_of_an_attribute_that_a_capture_hides():
    hidden, seen = HeldAttribute("loss", 3, 0.5), []
    read = threading.Thread(target=lambda: seen.extend([f"{hidden:.2f}", hidden + 1, hidden.real]))
    read.start()
    read.join()
    assert seen == ["0.50", 1.5, 0.5]
    assert hidden.error is None
    for use in ("{:.2f}", "{.real}"):
        with pytest.raises(CaptureError, match="loss, which line 3 sets after the program"):
            use.format(hidden)
    assert hidden.error is not None
