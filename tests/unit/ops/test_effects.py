"""Prints and host calls in programs: kept apart, in order, and dropped when nobody reads them."""

import pytest
import torch

from abele import passes
from abele.errors import HostCallError
from abele.ops.host_call import HostCalls, described, host_call
from abele.ops.print_tensor import print_tensor
from abele.passes import common_subexpressions, dead_code
from abele.program import has_effect
from abele.targets.reference import Interpreter
from helpers.runs import captured

X = torch.ones(2)


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def program_of(function, *inputs):
    (program,) = captured(Of(function), inputs or (X,)).programs
    return program


def effects(program):
    return [node for node in program.graph.graph.nodes if has_effect(node)]


def two_prints(x):
    return print_tensor(x, "same") + print_tensor(x, "same")


def test_equal_effects_are_not_merged():
    program = program_of(two_prints)
    assert len(effects(common_subexpressions(program))) == 2


def test_unread_effects_are_dead_code():
    def forward(x):
        print_tensor(x, "unread")
        return print_tensor(x, "read")

    assert len(effects(dead_code(program_of(forward)))) == 1


def test_each_effect_waits_for_the_one_before():
    def forward(x):
        first = print_tensor(x, "first")
        (second, _) = host_call([x], "second", "float32[2] int64[]")
        return first + second + print_tensor(x, "third")

    program = passes.run(program_of(forward))
    first, second, third = effects(program)
    assert (first.args[1], second.args[1]) == (None, first)
    assert third.args[1].args == (second, 0)


def test_results_of_a_call_nobody_reads_still_make_it_wait():
    def forward(x):
        (_, total) = host_call([x], "sum", "float32[2] float32[]")
        return total + print_tensor(x, "x")

    program = passes.run(program_of(forward))
    call, printed = effects(program)
    assert printed.args[1].args == (call, 0)
    calls = HostCalls()
    calls.functions["sum"] = lambda inputs: [inputs[0], inputs[0].sum()]
    with calls.in_use():
        (result,) = Interpreter().compile(program).run([X])
    assert result.tolist() == [3.0, 3.0]


def called(function, results="float32[2]"):
    program = passes.run(program_of(lambda x: host_call([x], "f", results)[0]))
    calls = HostCalls()
    if function is not None:
        calls.functions["f"] = function
    with calls.in_use():
        return Interpreter().compile(program).run([X])


def test_functions_get_and_give_tensors_of_their_own():
    def change(inputs):
        inputs[0].add_(1)
        return inputs

    assert called(change)[0].tolist() == [2.0, 2.0]
    assert X.tolist() == [1.0, 1.0]


def test_a_missing_function_is_named():
    with pytest.raises(HostCallError, match=r"calls 'f' on the host, which has the functions \[\]"):
        called(None)


def test_a_call_without_any_functions_is_an_error():
    with pytest.raises(HostCallError, match="Capture the model in this process"):
        host_call([X], "f", "float32[2]")


def test_changed_results_are_an_error():
    with pytest.raises(HostCallError, match=r"returned int64\[\], and float32\[2\] when"):
        called(lambda inputs: [torch.tensor(1)])


def test_a_failure_does_not_stay():
    calls = HostCalls()

    def interrupted(inputs):
        raise KeyboardInterrupt

    calls.functions["f"] = interrupted
    with pytest.raises(KeyboardInterrupt), calls.in_use():
        host_call([X], "f", "float32[2]")
    with pytest.raises(ZeroDivisionError), calls.in_use():
        _ = 1 / 0


def test_kinds_are_described():
    assert described([torch.ones(2, 3), torch.tensor(1)]) == "float32[2, 3] int64[]"
    (a, b) = program_of(lambda x: host_call([x], "f", "float16[2, 3] bool[]")).outputs
    assert (a.shape, a.dtype, b.shape, b.dtype) == ((2, 3), torch.float16, (), torch.bool)


def test_operators_obey_torch_rules_for_operators():
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    layout = (1000, 3, 80, 4, "auto", ", ", "(", ")")
    samples = {
        torch.ops.abele.print_tensor.default: (x, None, "t", "", *layout),
        torch.ops.abele.checkpoint.default: (x,),
    }
    for operator, arguments in samples.items():
        outcome = torch.library.opcheck(operator, arguments, test_utils="test_faketensor")
        assert set(outcome.values()) == {"SUCCESS"}
        assert torch.autograd.gradcheck(operator, arguments)
