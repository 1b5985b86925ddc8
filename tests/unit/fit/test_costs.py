"""What kernels cost on a machine whose limits are round numbers."""

import dataclasses

import pytest
import torch

from abele import _torch
from abele.fit import costs, duration
from abele.machine_limits import MachineLimits, Rates
from abele.ops import gru_loop, lstm, lstm_loop, recurrent, rnn_loop
from abele.program import memory
from abele.report.operators import operations
from abele.targets.kernel_choice import NOBODY, Kernel
from helpers.runs import captured

aten = torch.ops.aten
# Bytes of which nothing takes time, for what is to be seen of operations, and the other way.
FREE, SLOW = ((0, 1e30),), ((costs._SOON, 100.0), (2 * costs._SOON, 10.0))
LIMITS = MachineLimits(
    device="cpu",
    threads=1,
    rates={
        "float32": Rates(operations_per_s=1e3, turned_per_s=2e3, bandwidths=FREE),
        "float16": Rates(operations_per_s=10.0, turned_per_s=40.0, bandwidths=FREE),
    },
    exponentials_per_s=1e3,
    call_s=0.0,
)


def node(target, *arguments):
    """A node that computes something of tensors, without data."""
    graph = torch.fx.Graph()

    def placed(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = graph.placeholder("x")
        made.meta["val"] = value
        return made

    call = graph.call_function(target, tuple(map(placed, arguments)))
    call.meta["val"] = target(*arguments)
    return call


def image(*shape, **kind):
    return torch.empty(*shape, device="meta", **kind)


def seconds(each, what="torch", limits=LIMITS, **more):
    given = {"inner": 0, "memory": 0, "called": True, **more}
    return costs.of_kernel(Kernel(what=what, nodes=(each,)), limits, **given)


def with_bandwidths(bandwidths):
    rates = dataclasses.replace(LIMITS.rates["float32"], bandwidths=bandwidths)
    return dataclasses.replace(LIMITS, rates={"float32": rates})


def convolution(channels, outputs, groups=1, **kind):
    arguments = image(2, channels, 8, 8, **kind), image(outputs, channels // groups, 3, 3, **kind)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    return node(aten.convolution.default, *arguments, None, *rest)


def backward(channels, outputs, mask, groups=1):
    grad, x = image(2, outputs, 8, 8), image(2, channels, 8, 8)
    weight = image(outputs, channels // groups, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups, mask)
    return node(aten.convolution_backward.default, grad, x, weight, [0], *rest)


def with_activation(channels, outputs, groups=1):
    """A convolution and its activation in one call, as programs of inference have them."""
    target = _torch.convolution_with_activation()
    if target is None:
        pytest.skip("this torch has no convolution with an activation")
    alone = convolution(channels, outputs, groups)
    x, weight = alone.all_input_nodes
    rest = ([1, 1], [1, 1], [1, 1], groups, "leaky_relu", [0.0], "")
    with alone.graph.inserting_after(alone):
        call = alone.graph.call_function(target, (x, weight, None, *rest))
    call.meta["val"] = alone.meta["val"]
    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_product_takes_what_its_type_and_order_take(dtype):
    left, right = image(8, 16, dtype=dtype), image(16, 4, dtype=dtype)
    turned = image(4, 16, dtype=dtype).t()
    rates = LIMITS.of_type(dtype)
    plain = seconds(node(aten.mm.default, left, right))
    assert plain == pytest.approx(2 * 8 * 16 * 4 / rates.operations_per_s / costs._PRODUCTS)
    faster = rates.turned_per_s / rates.operations_per_s
    assert plain / seconds(node(aten.mm.default, left, turned)) == pytest.approx(faster)


def test_bytes_take_as_long_as_the_memory_of_the_step_does():
    limits = with_bandwidths(SLOW)
    add, much = node(aten.add.Tensor, image(10), image(10)), 2 * costs._SOON
    assert seconds(add, limits=limits, memory=0) == 120 / 100
    assert seconds(add, limits=limits, memory=much) == 120 / 10
    assert seconds(add, limits=limits, inner=80) == 200 / 100


def test_compiled_code_reads_results_soon_and_state_once_in_a_step():
    limits, much = with_bandwidths(SLOW), 2 * costs._SOON
    add = node(aten.add.Tensor, image(10), image(10))
    write = node(aten.copy_.default, image(10), image(10))
    assert seconds(add, "loop", limits=limits, memory=much, called=False) == 120 / 100
    alone = seconds(write, "loop", limits=limits, memory=0, called=False)
    assert seconds(write, "loop", limits=limits, memory=much, called=False) == 10 * alone > 0


def test_our_products_move_bytes_before_and_after_they_multiply():
    limits = with_bandwidths(((0, 1.0),))
    product = node(aten.mm.default, image(8, 16), image(16, 4))
    multiplying = seconds(product, "multiply", called=False)
    moving = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    ours = seconds(product, "multiply", limits=limits, called=False)
    assert ours == pytest.approx(moving + multiplying)
    assert seconds(product, limits=limits) == moving  # the library does so meanwhile


def test_a_call_from_python_takes_longer_if_it_is_ours_or_a_convolution():
    limits = dataclasses.replace(LIMITS, call_s=1e-3)
    add, convolved = node(aten.add.Tensor, image(1), image(1)), convolution(16, 16)
    assert seconds(add, limits=limits) == pytest.approx(costs._CALL * 1e-3)
    assert seconds(add, "norm_activation", limits) == pytest.approx(costs._OUR_CALL * 1e-3)
    assert seconds(add, "loop", limits, called=False) < 1e-12
    more = seconds(convolved, limits=limits) - seconds(convolved)
    assert more == pytest.approx(costs._CONVOLUTION_CALL * 1e-3)
    view = node(aten.view.default, image(4, 4), [16])
    assert seconds(view, NOBODY, limits) == pytest.approx(costs._CALL * 1e-3)
    assert seconds(view, NOBODY, limits, called=False) == 0


def test_the_library_fills_channels_and_our_kernels_do_not():
    whole, eight = convolution(16, 16), convolution(16, 8)
    assert seconds(whole) == pytest.approx(seconds(eight))
    ours = "direct_convolution"
    assert seconds(whole, ours) == pytest.approx(2 * seconds(eight, ours))
    assert seconds(whole, "winograd_convolution") < seconds(whole, ours)


def test_a_loop_beside_a_product_does_not_multiply():
    product = node(aten.addmm.default, image(4), image(8, 16), image(16, 4))
    assert seconds(product, "multiply", called=False) > 1
    assert seconds(product, "loop", called=False) < 1e-9


def test_groups_compute_no_more_than_their_channels():
    assert operations(convolution(32, 32, groups=32)) * 32 == operations(convolution(32, 32))
    for mask in ([True, True, False], [False, True, False]):
        alone, together = backward(32, 32, mask, groups=32), backward(32, 32, mask)
        assert operations(alone) * 32 == operations(together)


def test_a_convolution_with_an_activation_computes_what_it_does_alone():
    for groups in (1, 32):
        together, alone = with_activation(32, 32, groups), convolution(32, 32, groups)
        assert operations(together) == operations(alone) > 0
        for what in ("torch", "winograd_convolution", "direct_convolution"):
            assert seconds(together, what) == pytest.approx(seconds(alone, what))


def test_channels_that_are_convolved_alone_take_longer_than_their_operations():
    alone, pairs = convolution(32, 32, groups=32), convolution(32, 32, groups=16)
    share = costs._LIBRARY_CONVOLUTIONS / costs._EACH_CHANNEL_ALONE
    assert seconds(alone) == pytest.approx(seconds(pairs) * share / 2)
    half = convolution(32, 32, groups=32, dtype=torch.float16)
    assert operations(half) == operations(alone)


def test_attention_of_the_host_has_operations():
    query = image(2, 4, 16, 8)
    forward = node(
        aten._scaled_dot_product_flash_attention_for_cpu.default, query, query, query, 0.0, False
    )
    assert operations(forward) == 2 * 2 * 2 * 4 * 16 * 16 * 8


def test_an_lstm_has_operations():
    x, weights, state = image(7, 4, 5), (image(24, 5), image(24, 6)), image(4, 6)
    biases = image(24), image(24)
    shared = x, *weights, *biases, state, state
    forward = node(lstm.forward, *shared, False, True, True)
    states, kept = image(7, 4, 6), torch.empty(10, dtype=torch.uint8)
    others = states, state, state, states, state, state, kept, False, True
    backward = node(lstm.backward, *shared, *others)
    assert operations(forward) == 2 * 7 * 4 * 24 * (5 + 6)
    assert operations(backward) == 2 * operations(forward)


def test_the_loop_of_an_lstm_has_those_of_its_state():
    gates, weight, state = image(7, 4, 24), image(24, 6), image(4, 6)
    forward = node(lstm_loop.forward, gates, weight, None, state, state, False, True)
    states = image(8, 4, 6)
    backward = node(lstm_loop.backward, None, state, None, weight, states, gates, False)
    assert operations(forward) == operations(backward) == 2 * 7 * 4 * 24 * 6


def test_a_gru_has_operations():
    x, state, weights = image(7, 4, 5), image(4, 6), [image(18, 5), image(18, 6), image(18)]
    weights += [image(18)]
    forward = node(recurrent.forward, "gru", x, state, weights, False, True, True)
    given = image(7, 4, 6), image(4, 7, 4, 6), image(7, 4, 6), None
    backward = node(recurrent.backward, "gru", x, state, weights, False, True, *given)
    assert operations(forward) == 2 * 7 * 4 * 18 * (5 + 6)
    assert operations(backward) == 2 * 7 * 4 * 18 * (3 * 5 + 2 * 6)


def test_loops_of_other_layers_have_those_of_their_state():
    states, weight, state = image(8, 4, 6), image(18, 6), image(4, 6)
    forward = node(gru_loop.forward, image(7, 4, 18), weight, None, state, False, True)
    given = None, state, weight, states, image(7, 4, 24), False
    assert operations(forward) == 2 * 7 * 4 * 18 * 6
    assert operations(node(gru_loop.backward, *given)) == operations(forward)
    weight = image(6, 6)
    forward = node(rnn_loop.forward, image(7, 4, 6), weight, None, state, False, False)
    assert operations(forward) == 2 * 7 * 4 * 6 * 6
    given = None, state, weight, states, False, False
    assert operations(node(rnn_loop.backward, *given)) == operations(forward)


def test_work_on_elements_counts_in_exponentials_and_less_in_compiled_code():
    tanh = node(aten.tanh.default, image(1000))
    assert seconds(tanh) == pytest.approx(3.0)
    assert seconds(tanh, "loop", called=False) == pytest.approx(3.0 * costs._OUR_ELEMENTS)
    pool = aten.max_pool2d_with_indices.default
    rows = image(1, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    assert seconds(node(pool, rows, [2, 2])) < seconds(node(pool, image(1, 16, 8, 8), [2, 2]))


def test_our_pool_reads_several_channels_at_once():
    pool = aten.max_pool2d_with_indices.default
    eight, five = (node(pool, image(1, channels, 8, 8), [2, 2]) for channels in (8, 5))
    assert seconds(eight, "max_pool") < seconds(five, "max_pool") < seconds(five)


def test_our_upsampling_is_faster_than_that_of_the_library():
    upsample = node(aten.upsample_bilinear2d.default, image(1, 8, 4, 4), [8, 8], False)
    assert 0 < seconds(upsample, "upsample") < seconds(upsample)


def test_nothing_is_faster_than_its_operations():
    kernel = Kernel(what="winograd_convolution", nodes=(convolution(16, 16),))
    least = costs.at_least(kernel, LIMITS)
    assert 0 < least < costs.of_kernel(kernel, LIMITS, inner=0, memory=0, called=False)


def test_a_small_program_takes_what_python_around_it_takes():
    (step,) = captured(torch.nn.Identity(), (torch.zeros(2),)).programs
    limits, use = dataclasses.replace(LIMITS, call_s=1e-3), memory.of_graph(step)
    around = duration._AROUND * 1e-3
    for compiled in (True, False):
        time = duration.of_program(step, (), limits, use, compiled=compiled)
        assert time.expected == pytest.approx(around)
        assert time.low < around < time.high
