"""What a program needs at its peak: bands around what is planned."""

import torch

from abele.fit import run
from abele.fit.estimate import Interval
from abele.program import is_view, memory
from abele.program.memory import MemoryUse, Piece
from helpers.runs import captured


class Twice(torch.nn.Module):
    def forward(self, x):
        return (x @ x).relu() @ x


def program(side):
    (step,) = captured(Twice(), (torch.randn(side, side),)).programs
    return step


def test_what_a_product_packs_does_not_grow_with_it():
    (large,) = (
        {run.packed(n) for n in step.graph.graph.nodes if "mm" in n.name}
        for step in (program(4096),)
    )
    assert large == {torch.get_num_threads() * 2**23}


def test_what_products_pack_is_kept_and_none_of_their_own():
    step = program(64)
    products = [node for node in step.graph.graph.nodes if "mm" in node.name]
    assert {run.workspace(n, known=False) for n in products} == {Interval.exact(0)}
    parts = run.need(step, memory.of_graph(step), run.PIECES).parts
    (kept,) = [part.size for part in parts if part.role == run.PACKED]
    assert kept == Interval(0, 0, 3 * 64 * 64 * 4 / 2)


def test_what_products_pack_in_half_is_given_back():
    (step,) = captured(Twice(), (torch.randn(64, 64).half(),)).programs
    products = [node for node in step.graph.graph.nodes if "mm" in node.name]
    highs = {run.workspace(n, known=False).high for n in products}
    assert highs == {tensors * 64 * 64 * 2 / 2 for tensors in (2, 3)}  # one is a square
    assert {run.packed(n) for n in products} == {0.0}


class Looked(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.relu(x.expand(1000, -1, -1).unsqueeze(1))


def test_a_view_takes_nothing_inside_however_large_it_looks():
    (step,) = captured(Looked(), (torch.randn(1, 8, 64),)).programs
    views = [node for node in step.graph.graph.nodes if is_view(node)]
    assert views
    assert {run.workspace(n, known=False) for n in views} == {Interval.exact(0)}


class Elements(torch.nn.Module):
    def forward(self, x):
        return x.tanh() * x, x.double() + x, x.softmax(1)


def test_operators_on_elements_of_one_type_take_nothing_inside():
    (step,) = captured(Elements(), (torch.randn(8, 64),)).programs
    nodes = {node.name: node for node in step.graph.graph.nodes}
    taken = {name for name, node in nodes.items() if run.workspace(node, known=False).high}
    assert {"tanh", "mul"} <= set(nodes)
    assert taken == {"add", "_softmax"}


def test_what_torch_makes_for_a_compiled_program_leaves_gaps_and_results_do_not():
    step = program(64)
    nodes = tuple(step.graph.graph.nodes)
    made = next(node for node in nodes if "relu" in node.name)
    at, end = nodes.index(made), len(nodes) - 1
    pieces = (
        Piece(node=made, first=at, last=end - 1, size=1000),
        Piece(node=nodes[-2], first=at, last=end, size=10),
    )
    use = MemoryUse(basis="", nodes=nodes, pieces=pieces, bare=frozenset(range(len(nodes))))
    need = run.need(step, use, run.PIECES)
    sizes = {part.role: part.size for part in need.parts}
    assert sizes["used in forward only"] == run.RESULTS.of(1000)
    assert sizes["results"] == run.returned(10)
    planned = MemoryUse(basis="", nodes=nodes, pieces=pieces, shared=0)
    (inside, *_) = run.need(step, planned, run.PIECES).parts
    assert inside.size == run.SETTLED.of(1000)
    pieces = (Piece(node=made, result=-1, first=at, last=at, size=1000, inner=True),)
    of_library = MemoryUse(basis="", nodes=nodes, pieces=pieces, shared=0)
    need = run.need(step, of_library, run.PIECES)
    spaces = [part.size for part in need.parts if part.role == run.WORKSPACE]
    assert spaces == [Interval.exact(1000), Interval(0, 200, 750)]  # the gaps beside it


def test_the_graph_itself_has_no_plan_that_is_known():
    step = program(64)
    use = memory.of_graph(step)
    (part, *_) = run.need(step, use, run.PIECES).parts
    assert part.size == run.PIECES.of(part.size.low)
