"""The passes keep every bit, remove what they say, and the runner names the one that breaks."""

import pytest
import torch
from torch import nn

from abele import passes
from abele.compilation.compiling import made_up
from abele.errors import ProgramError
from abele.passes import PIPELINE, common_subexpressions, dead_code, identities
from abele.passes._edit import editable, finished, one_after_the_other
from abele.passes.of_lowerings.early_writes import early_writes
from abele.program import Program, Role, Slot, writes
from abele.program.memory import of_graph
from helpers.models import MODELS
from helpers.runs import assert_same_bits, captured, flat, rule_for, run, started

aten = torch.ops.aten
X = torch.arange(12.0).reshape(4, 3) / 8


class Of(nn.Module):
    """The forward a test wants."""

    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def program_of(build):
    """A program of ``x`` [4, 3] whose nodes ``build(graph, x)`` makes, with shapes filled in."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    returned = build(lambda target, *args: graph.call_function(target, args), x)
    graph.output(returned)
    module = torch.fx.GraphModule({}, graph)
    torch.fx.passes.shape_prop.ShapeProp(module).propagate(X)
    for node, value in zip(graph.nodes, _values(module), strict=True):
        node.meta["val"] = value
    inputs = (Slot(name="x", role=Role.INPUT, shape=(4, 3), dtype=torch.float32),)
    outputs = tuple(
        Slot(
            name=f"output{i}",
            role=Role.OUTPUT,
            shape=tuple(node.meta["val"].shape),
            dtype=node.meta["val"].dtype,
        )
        for i, node in enumerate(returned)
    )
    return Program(name="forward", graph=module, inputs=inputs, outputs=outputs).verify()


def _values(module):
    results = []

    class Recorder(torch.fx.Interpreter):
        def run_node(self, node):
            results.append(super().run_node(node))
            return results[-1]

    Recorder(module).run(X)
    return results


def targets(program):
    return [node.target for node in program.graph.graph.nodes if node.op == "call_function"]


def count(program, target):
    return targets(program).count(target)


def same_results(before, after):
    torch.testing.assert_close(after.graph(X), before.graph(X), rtol=0, atol=0)


# -- identities ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda op, x: [op(aten.relu.default, op(aten.detach.default, x))],
        lambda op, x: [op(aten.relu.default, op(aten.alias.default, x))],
        lambda op, x: [op(aten.relu.default, op(aten.t.default, op(aten.t.default, x)))],
        lambda op, x: [op(aten.relu.default, op(aten.copy.default, x, op(aten.neg.default, x)))],
    ],
    ids=["detach", "alias", "two transposes", "a copy of equal layout"],
)
def test_an_identity_is_its_argument(build):
    before = program_of(build)
    after = identities(before).verify()
    assert set(targets(after)) <= {aten.relu.default, aten.neg.default, aten.t.default}
    assert len(targets(after)) < len(targets(before))
    same_results(before, after)


@pytest.mark.parametrize(
    ("target", "build"),
    [
        (aten.t.default, lambda op, x: [op(aten.relu.default, op(aten.t.default, x))]),
        (
            aten.copy.default,
            lambda op, x: [op(aten.copy.default, op(aten.t.default, x), op(_transposed, x))],
        ),
        (aten.clone.default, lambda op, x: [op(aten.clone.default, x)]),
    ],
    ids=["one transpose", "a copy into another layout", "a clone"],
)
def test_what_changes_layout_or_storage_stays(target, build):
    before = program_of(build)
    after = identities(before).verify()
    assert count(after, target) == count(before, target)
    same_results(before, after)


def _transposed(x):
    return x.t().contiguous()


# -- common subexpressions -----------------------------------------------------------------


class Shifting(nn.Module):
    """Keeps a part of a buffer that is written afterwards."""

    def __init__(self, part):
        super().__init__()
        self.register_buffer("first", torch.arange(4.0))
        self.register_buffer("second", torch.zeros(2))
        self.part = part

    def forward(self, x):
        self.second.copy_(self.part(self.first))
        self.first.add_(1)
        return x + 1


@pytest.mark.parametrize(
    "part",
    [
        lambda first: first[:2],
        lambda first: first.chunk(2)[1],
        lambda first: first.split([2, 2])[0],
        lambda first: first.view(2, 2).unbind()[1],
    ],
    ids=["slice", "chunk", "split", "unbind"],
)
def test_a_copied_part_of_a_slot_is_that_from_before_the_slot_is_written(part):
    module = Shifting(part)
    session, _ = started(module, [torch.ones(2)])
    for _ in range(2):
        session.step([torch.ones(2)])
        module(torch.ones(2))
    assert torch.equal(session.buffers[0]["first"], module.first)
    assert torch.equal(session.buffers[0]["second"], module.second)


def test_equal_operations_are_done_once():
    def build(op, x):
        one, two = op(aten.exp.default, x), op(aten.exp.default, x)
        return [op(aten.add.Tensor, one, two)]

    before = program_of(build)
    after = common_subexpressions(before).verify()
    assert (count(before, aten.exp.default), count(after, aten.exp.default)) == (2, 1)
    same_results(before, after)


def _copied(m, x):
    source = x.exp()
    return torch.empty_like(source).copy_(source), source


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (x.exp(), x.exp()),
        lambda m, x: (x.exp().view(-1), x.exp().view(-1)),
        lambda m, x: (x.t().reshape(-1), x.t().reshape(-1)),
        lambda m, x: (x.max(1)[0], x.max(1)[0]),
        lambda m, x: (x.exp().split(2)[0], x.exp().split(2)[0]),
        _copied,
    ],
    ids=["equal", "views", "silent views", "picked", "parts", "copied"],
)
def test_results_that_are_equal_do_not_share_memory(forward):
    session, _ = started(Of(forward), [X])
    first, second = session.step([X])
    expected = second.clone()
    first.zero_()
    assert torch.equal(second, expected)


def test_equal_results_are_merged_through_several_levels():
    def branch(op, x):
        return op(aten.sin.default, op(aten.exp.default, x))

    before = program_of(lambda op, x: [op(aten.add.Tensor, branch(op, x), branch(op, x))])
    assert len(targets(common_subexpressions(before))) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), (1.0, 2.0)],
    ids=["int and float", "int and bool", "both zeros", "two numbers"],
)
def test_arguments_that_python_calls_equal_are_not(one, other):
    def build(op, x):
        products = (op(aten.mul.Tensor, x, value) for value in (one, other))
        return [op(aten.div.Tensor, op(aten.neg.default, p), 0.0) for p in products]

    before = program_of(build)
    after = common_subexpressions(before).verify()
    assert count(after, aten.mul.Tensor) == 2
    program, expected = after.graph(X), before.graph(X)
    torch.testing.assert_close(program, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: torch.rand_like(x) + torch.rand_like(x),
        lambda m, x: torch.dropout(x, 0.5, True) + torch.dropout(x, 0.5, True),
        lambda m, x: torch.bernoulli(x / 2) + torch.bernoulli(x / 2),
        lambda m, x: torch.randperm(4) + torch.randperm(4),
    ],
    ids=["rand_like", "dropout", "bernoulli", "randperm"],
)
def test_random_operations_are_never_merged(forward):
    (before,) = captured(Of(forward), (X,)).programs
    after = passes.run(before)
    torch.manual_seed(0)
    expected = before.graph(torch.ones(3), X)
    torch.manual_seed(0)
    torch.testing.assert_close(after.graph(torch.ones(3), X), expected, rtol=0, atol=0)


# -- dead code -----------------------------------------------------------------------------


def test_writes_and_unused_inputs_stay():
    model = MODELS["dense"]
    module = model.fresh()
    module.unused = nn.Parameter(torch.ones(2))
    (before,) = captured(module, model.batch(), None, rule_for(module)).programs
    after = dead_code(before).verify()
    assert count(after, aten.copy_.default) == count(before, aten.copy_.default) == 8
    assert after.inputs == before.inputs


# -- the pipeline --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["introduction", "batch norm and dropout", "tied weights"])
def test_the_pipeline_keeps_every_bit_and_removes_nodes(name, kind, monkeypatch):
    model, trained, nodes = MODELS[name], [], []
    for pipeline in (PIPELINE, ()):
        monkeypatch.setattr(passes, "PIPELINE", pipeline)
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module, kind))
        trained.append(run(session, model.batches(5)))
        nodes.append(len(session.executable.programs[0].graph.graph.nodes))
    assert_same_bits(*trained)
    assert nodes[0] < nodes[1]


@pytest.mark.parametrize("each", PIPELINE, ids=lambda each: each.__name__)
def test_a_pass_leaves_its_argument_alone(each):
    (program,) = captured(Of(lambda m, x: (x.exp() + x.exp()).detach()), (X,)).programs
    before = program.text()
    each(program)
    assert program.text() == before


def test_a_pass_run_twice_finds_nothing_more():
    model = MODELS["introduction"]
    module = model.fresh()
    (program,) = captured(module, model.batch(), None, rule_for(module)).programs
    once = passes.run(program)
    assert passes.run(once).text(provenance=False) == once.text(provenance=False)


def test_the_runner_stamps_each_pass():
    (program,) = captured(Of(lambda m, x: x.exp().detach()), (X,)).programs
    history = passes.run(program, [nothing]).history
    assert [stamp.by for stamp in history] == [
        "capture", "identities", "common_subexpressions", "dead_code", "effects_in_order",
        "recomputation", "nothing",
    ]  # fmt: skip
    assert history[-1].nodes == 4
    assert all(stamp.seconds >= 0 for stamp in history)


def nothing(program):
    return program


def forget_the_outputs(program):
    graph = editable(program)
    for node in graph.graph.nodes:
        if node.op == "output":
            node.args = ([],)
    return program.replace(graph=graph)


def test_the_runner_names_the_pass_that_breaks_a_program():
    (program,) = captured(Of(lambda m, x: x + 1), (X,)).programs
    with pytest.raises(
        ProgramError,
        match=r"Pass 'forget_the_outputs' broke program 'forward' after \['capture', 'identities', "
        r"'common_subexpressions', 'dead_code', 'effects_in_order', 'recomputation', 'nothing'\]: "
        r".* returns 0 values for 1 output",
    ):
        passes.run(program, [nothing, forget_the_outputs])


def in_the_wrong_order(program):
    graph = editable(program)
    first = next(node for node in graph.graph.nodes if node.op == "call_function")
    graph.graph.output_node().prepend(first)
    return finished(program, graph)


@pytest.mark.parametrize("after", [(), (nothing,), (dead_code,)], ids=["last", "kept", "changed"])
def test_a_graph_in_the_wrong_order_is_found_after_the_passes(after):
    (program,) = captured(Of(lambda m, x: (x + 1) * 2), (X,)).programs
    with pytest.raises(RuntimeError, match="was used before it has been defined"):
        passes.run_only(program, [in_the_wrong_order, *after])


def test_several_programs_are_looked_at_within_one_run_of_passes():
    (program,) = captured(Of(lambda m, x: (x + 1) * 2), (X,)).programs
    with one_after_the_other():
        passes.run_only(program, [in_the_wrong_order])
        with pytest.raises(RuntimeError, match="was used before it has been defined"):
            passes.run(program)


def test_source_lines_survive_the_pipeline():
    model = MODELS["introduction"]
    (program,) = captured(model.fresh(), model.batch()).programs
    assert "# models.py:" in passes.run(program).text()


def test_constants_survive_the_pipeline():
    factor = torch.tensor([2.0, 3.0, 4.0])
    module = Of(lambda m, x: x * factor)
    (program,) = captured(module, (X,)).programs
    (result,) = passes.run(program).graph(torch.ones(3), X)
    torch.testing.assert_close(result, flat(module(X))[0], rtol=0, atol=0)


# -- writes --------------------------------------------------------------------------------


def _most_new_state(program):
    """Most bytes that are alive at a write of a program."""
    alive = of_graph(program).alive()
    return max(alive[i] for i, node in enumerate(program.graph.graph.nodes) if writes(node))


def test_new_state_is_written_before_that_of_the_next_parameter_is_computed():
    model, module = MODELS["dense"], MODELS["dense"].fresh()
    program = passes.run(
        captured(module, model.batch(), None, rule_for(module, "adam")).programs[0]
    )
    early = early_writes(program).verify()
    assert sorted(map(str, targets(early))) == sorted(map(str, targets(program)))
    gradients = [each.nbytes for each in module.parameters()]
    assert _most_new_state(program) >= 3 * sum(gradients)
    assert _most_new_state(early) <= sum(gradients) + 3 * max(gradients)
    states = [made_up(program) for _ in range(2)]
    for each, state in zip((program, early), states, strict=True):
        each.graph(*state)
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


class Counting(nn.Module):
    """Counts its calls, then picks rows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x, rows):
        self.calls.add_(1)
        return (x.abs() + 1)[rows] * 2


def test_state_is_written_after_the_last_operator_that_may_fail():
    rows = torch.tensor([0, 3])
    (program,) = captured(Counting(), (X, rows)).programs
    called = targets(early_writes(program))
    at = called.index(aten.copy_.default)
    assert called.index(aten.index.Tensor) < at < called.index(aten.mul.Tensor)
    assert targets(program)[-1] is aten.copy_.default
