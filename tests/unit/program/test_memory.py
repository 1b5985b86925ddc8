"""The memory of a program, computed again by running it and looking at what is there."""

import pytest
import torch

from abele import arena, passes
from abele.program import memory
from abele.targets import get_target
from abele.targets.cpu.emitted import lowering as emitted
from abele.targets.cpu.emitted.memory import ALIGNMENT
from abele.targets.translation.places import Kind
from helpers.models import MODELS
from helpers.runs import captured, rule_for


def step_of(name):
    model = MODELS[name]
    module = model.fresh()
    return captured(module, model.batch(), rule=rule_for(module)).programs[0]


class Watched(torch.fx.Interpreter):
    """Runs a graph and adds up, at each node, the storages that its values hold."""

    def __init__(self, program, given):
        super().__init__(program.graph)
        self._given = {each.untyped_storage().data_ptr() for each in given}
        self.peak = 0

    def run_node(self, n):
        result = super().run_node(n)
        storages = {}
        for each in (*self.env.values(), result):
            storages |= {s.data_ptr(): s.nbytes() for s in flat_storages(each)}
        made = {where: size for where, size in storages.items() if where not in self._given}
        self.peak = max(self.peak, sum(made.values()))
        return result


def flat_storages(value):
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage()]
    several = value if isinstance(value, tuple | list) else ()
    return [each for item in several for each in flat_storages(item)]


def measured_peak(program):
    """The most bytes there were while the program's graph ran, value by value."""
    arguments = [torch.zeros(slot.shape, dtype=slot.dtype) for slot in program.inputs]
    watched = Watched(program, arguments)
    with torch.no_grad():
        watched.run(*arguments)
    return watched.peak


# Not "dense": torch returns its mean squared error in memory that is larger than the result.
@pytest.mark.parametrize("name", ["introduction", "embedding and layer norm", "tied weights"])
def test_the_peak_is_what_running_the_graph_needs_to_the_byte(name):
    program = step_of(name)
    use = memory.of_graph(program)
    assert max(use.alive()) == measured_peak(program)
    assert use.needed() == use.alive()


def test_what_is_alive_at_the_peak_adds_up_to_it():
    use = memory.of_graph(step_of("introduction"))
    alive = use.alive()
    step = alive.index(max(alive))
    pieces = use.at(step)
    assert sum(each.size for each in pieces) == max(alive)
    assert [each.size for each in pieces] == sorted((each.size for each in pieces), reverse=True)


def lowered(name):
    program = step_of(name)
    lowering = get_target("cpu").lowering("emitted")
    with passes.one_after_the_other():
        return passes.run_only(passes.run(program, ()), lowering.passes), lowering


@pytest.mark.parametrize("name", ["dense", "introduction"])
def test_the_plan_of_emitted_code_is_reported_as_it_is(name, monkeypatch):
    monkeypatch.setattr(arena, "available", lambda: False)
    program, lowering = lowered(name)
    use = lowering.memory(program)
    placed = emitted.planned_code(program)
    taken = bytearray(placed.size)
    for step, alive in enumerate(use.alive()):
        # Counted again byte by byte: no two pieces that are in use share one.
        taken[:] = bytes(placed.size)
        apart = sum(each.size for each in use.pieces if each.first <= step <= each.last)
        for buffer, (first, last) in placed.lives.items():
            if buffer.kind is Kind.ARENA and first <= step <= last:
                begin = placed.offsets.get(buffer, 0)
                assert not any(taken[begin : begin + buffer.bytes])
                taken[begin : begin + buffer.bytes] = b"\1" * buffer.bytes
        assert sum(taken) + apart == alive
    assert use.reserved == placed.size >= max(use.alive()) - sum(p.size for p in use.pieces)
    assert use.reserved % ALIGNMENT == 0
    assert all(each.node is not None for each in use.inside)
