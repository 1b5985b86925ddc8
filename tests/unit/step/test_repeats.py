"""Repeats: the same function of other tensors is traced once."""

import torch

from abele import _torch
from abele.step.update_rules import Group, Repeats, UpdateRule, apply
from abele.trace import tracer


def _decay(calls, tensors, factor):
    def function():
        calls.append(1)
        for tensor in tensors:
            tensor.copy_(tensor * factor)

    return function


def _traced(function, *tensors):
    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in tensors]
        return _torch.make_fx(function)(*fakes)


def _ones(*shapes):
    return [torch.ones(shape) for shape in shapes]


def test_one_layout_is_traced_once_and_all_are_written():
    calls = []

    def body(*tensors):
        repeats = Repeats()
        for tensor in tensors:
            repeats.run("decay", _decay(calls, [tensor], 0.5), [tensor])
        return [tensor + 1 for tensor in tensors]

    graph = _traced(body, *_ones(3, 3, 3))
    values = _ones(3, 3, 3)
    results = graph(*values)
    assert len(calls) == 1
    assert [value.tolist() for value in values] == [[0.5] * 3] * 3
    assert [result.tolist() for result in results] == [[1.5] * 3] * 3


def test_other_keys_types_and_layouts_that_tell_too_little_are_traced_again():
    calls = []
    tensors = [*_ones(3, 3), torch.ones(3, dtype=torch.float64), torch.ones(2, 2).t()]
    tensors += [torch.ones(2, 3).t(), torch.ones(1, 3).t(), torch.ones(())]

    def body(*tensors):
        repeats = Repeats()
        for index, tensor in enumerate(tensors):
            factor = 0.5 if index else 0.25
            repeats.run(factor, _decay(calls, [tensor], factor), [tensor])
        return list(tensors)

    graph = _traced(body, *tensors)
    values = [tensor.clone() for tensor in tensors]
    graph(*values)
    assert len(calls) == len(tensors)
    assert [value.flatten()[0].item() for value in values] == [0.25] + [0.5] * 6


_SHAPES = (2, 3), (4, 2, 5), (7,), (2, 3), (4, 1), (8, 1, 5, 5), (4, 8, 1, 1), (1,)


def _updates(scale_of):
    """Traces an update of several shapes, by repeats and one by one."""
    graphs, calls = [], []
    for repeats in (Repeats(), None):

        def body(*tensors, repeats=repeats):
            for value, step in zip(tensors[::2], tensors[1::2], strict=True):

                def update(value=value, step=step):
                    calls.append(repeats)
                    step.add_(1)
                    value.copy_((value.half() * scale_of(value) / step).lerp(value.half(), 0.5))

                if repeats is None:
                    update()
                else:
                    repeats.run("update", update, [value, step])
            return [tensor * 1 for tensor in tensors]

        values = [value for shape in _SHAPES for value in _ones(shape, ())]
        graphs.append(_traced(body, *values))
    return graphs, len([each for each in calls if each is not None])


def _described(graph):
    results = []
    for node in graph.graph.nodes:
        if node.op == "call_function":
            value = node.meta["val"]
            layout = value.dtype, value.shape, value.stride()
            results.append((node.target, layout, node.meta.get("tensor_meta")))
    return results


def test_updates_of_elements_are_traced_once_for_all_plain_shapes():
    (repeated, plain), traced = _updates(lambda value: 2.0)
    assert traced == 1
    assert _described(repeated) == _described(plain)
    values = [[torch.full(given, 3.0) for shape in _SHAPES for given in (shape, ())]]
    values.append([value.clone() for value in values[0]])
    for one, other in zip(repeated(*values[0]), plain(*values[1]), strict=True):
        assert torch.equal(one, other)


def test_updates_that_look_at_whole_tensors_are_traced_for_each_shape():
    (repeated, plain), traced = _updates(lambda value: value.sum())
    assert traced == len({*_SHAPES})
    assert _described(repeated) == _described(plain)


def test_what_copied_nodes_wrote_can_be_written_again():
    def body(*tensors):
        repeats = Repeats()
        for tensor in tensors:
            repeats.run("double", lambda tensor=tensor: tensor.mul_(2), [tensor])
        for tensor in tensors:
            tensor.copy_(tensor + 1)
            tensor.add_(tensor)
        return [tensor - 1 for tensor in tensors]

    with _torch.static_fakes() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in _ones((2, 3), 3, 3)]
        graph = tracer.pure(_torch.make_fx(body)(*fakes), fakes)
    values = _ones((2, 3), 3, 3)
    results = graph(*values)
    assert [value.flatten()[0].item() for value in values] == [6, 6, 6]
    assert [result.flatten()[0].item() for result in results] == [5, 5, 5]


def test_a_tensor_that_comes_twice_is_no_pattern_for_others():
    calls = []

    def body(a, b, c):
        repeats = Repeats()
        for pair in ([a, a], [b, c]):
            repeats.run("add", lambda pair=pair: calls.append(pair[0].add_(pair[1])), pair)
        return [a, b, c]

    graph = _traced(body, *_ones(2, 2, 2))
    values = [torch.full((2,), number) for number in (1.0, 2.0, 3.0)]
    graph(*values)
    assert len(calls) == 2
    assert [value[0].item() for value in values] == [2, 5, 3]


def test_without_a_trace_every_call_runs():
    calls, tensors, repeats = [], _ones(3, 3), Repeats()
    for tensor in tensors:
        repeats.run("decay", _decay(calls, [tensor], 0.5), [tensor])
    assert len(calls) == 2
    assert tensors[1].tolist() == [0.5] * 3


def test_what_an_update_reads_of_its_surroundings_is_shared():
    names = ["a", "b", "c"]
    groups = [
        Group(
            params=tuple(part),
            values={"lr": lr, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1}
            | {"nesterov": False},
            variable=frozenset({"lr"}),
        )
        for part, lr in ((names[:2], 0.5), (names[2:], 0.25))
    ]
    rule = UpdateRule(kind="sgd", groups=tuple(groups))

    def body(*tensors):
        params = dict(zip(names, tensors, strict=False))
        grads = {name: tensor * 2 for name, tensor in params.items()}
        state = {n: {"momentum_buffer": m} for n, m in zip(names, tensors[3:], strict=False)}
        apply(rule, params, grads, state, {"group0.lr": tensors[6], "group1.lr": tensors[7]})
        return list(tensors)

    def values():
        numbers = [torch.arange(4.0) + index for index in range(6)]
        return [*numbers, torch.tensor(0.5).double(), torch.tensor(0.25).double()]

    expected, actual = values(), values()
    body(*expected)
    graph = _traced(body, *values())
    graph(*actual)
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one, other)
