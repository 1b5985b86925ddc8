"""Which lowering of target cuda takes a program, and what executables keep."""

import pytest
import torch

from abele.passes.of_lowerings.gpu import BACKWARD, FORWARD
from abele.targets import cuda, get_target
from abele.targets.candidates import ENVIRONMENT, candidates
from abele.targets.cuda import op_by_op
from abele.targets.cuda.emitted import nvrtc
from helpers.emitted_operators import program_of
from helpers.runs import captured


@pytest.fixture(autouse=True)
def _bindings(monkeypatch):
    monkeypatch.setattr(nvrtc, "unavailable", lambda: None)
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def names(program):
    return [lowering.name for lowering, _ in candidates(get_target("cuda"), program)]


class Branching(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_straight_code_is_written_and_torchs_kernels_run_the_rest(monkeypatch):
    straight = program_of(lambda x: x + 1, (torch.ones(2),), gradients=False)
    branching = captured(Branching(), (torch.ones(4),)).programs[0]
    assert (names(straight), names(branching)) == (["emitted"], ["op_by_op"])
    declined = get_target("cuda").why_not_chosen(branching, get_target("cuda").lowering("op_by_op"))
    assert declined == {"emitted": "it has loops or branches"}


def test_of_several_that_are_asked_for_the_first_is_taken(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "op_by_op,emitted")
    program = program_of(lambda x: x + 1, (torch.ones(2),), gradients=False)
    ((lowering, reason),) = candidates(get_target("cuda"), program)
    assert lowering.name == "op_by_op"
    expected = "the first that ABELE_LOWERING names, unmeasured: programs are not timed on target"
    assert reason.startswith(expected)


def test_each_operator_has_who_computes_it():
    x = torch.ones(4, 3)
    program = program_of(lambda x: (torch.exp(x) + 1) @ x.t(), (x,), gradients=False)
    for name, expected in (("emitted", {"loop", "torch"}), ("op_by_op", {"torch"})):
        choices = get_target("cuda").lowering(name).kernel_choices(program)
        assert {*choices.values()} - {"no code"} == expected


@pytest.fixture(name="gpu")
def _gpu(monkeypatch):
    """The host in place of a GPU."""
    monkeypatch.setattr(op_by_op, "current_gpu", lambda: torch.device("cpu"))


@pytest.mark.usefixtures("gpu")
def test_interpreted_programs_have_no_operators_of_processors():
    attention = torch.nn.functional.scaled_dot_product_attention
    program = program_of(attention, [torch.randn(2, 3, 4, 8)] * 3, gradients=True)
    assert {FORWARD, BACKWARD} <= {node.target for node in program.graph.graph.nodes}
    moved, _ = get_target("cuda").interpreted(program)
    assert not {FORWARD, BACKWARD}.intersection(node.target for node in moved.graph.graph.nodes)


@pytest.mark.usefixtures("gpu")
def test_interpreted_programs_run_on_the_stream_of_captures(monkeypatch):
    works = []

    def on_stream(work):
        works.append(work)
        return work()

    monkeypatch.setattr(cuda, "on_capture_stream", on_stream)
    program = program_of(lambda x: x + 1, (torch.ones(2),), gradients=False)
    (result,) = get_target("cuda").interpreted(program)[1]([torch.ones(2)])
    assert result.tolist() == [2.0, 2.0]
    assert len(works) == 1
