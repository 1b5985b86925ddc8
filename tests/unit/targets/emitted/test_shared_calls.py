"""What threads share is called in the library; other work is compiled into the program."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import arena, passes
from abele.kernels import binding
from abele.targets.cpu.emitted import build, headers, lowering, source
from abele.targets.cpu.emitted.calls import shared
from abele.targets.cpu.emitted.lowering import Emitted
from helpers.models import MODELS
from helpers.runs import captured, rule_for


def test_a_template_takes_what_it_knows_as_parameters():
    assert (
        shared.call("softmax", 1, (True,), "2, {0}") == "abele::softmax<1, true>(2, {0}, threads)"
    )


def test_the_library_is_told_the_same():
    text = shared.call("softmax", 12, (True,), "2, {0}")
    assert text == "abele_softmax(true, 2, {0}, abele::at_most(12, threads))"


@pytest.mark.parametrize("why", ["the library has no such function", "it has floats only"])
def test_else_threads_share_a_template(why):
    of_floats = why != "it has floats only"
    name = "running_maximum" if of_floats else "sum_rows"
    text = shared.call(name, 12, (), "{0}", of_floats=of_floats)
    assert text == f"abele::{name}<12>({{0}}, threads)"


def test_the_library_has_all_of_them():
    assert {f"abele_{name}" for name in shared.OF_THE_LIBRARY} <= set(binding.SIGNATURES)
    templates = "".join(path.read_text() for path in build.sources.FOLDER.glob("*.h"))
    for name in shared.OF_THE_LIBRARY:
        assert re.search(rf"inline void {name}\(", templates), name


def flags(text, monkeypatch, gcc):
    monkeypatch.setattr(headers, "is_gcc", lambda path: gcc)
    monkeypatch.setattr(headers, "arguments", lambda *here: [])
    return build.command(text, "program.cpp", "program.so")


def test_gcc_compiles_long_files_with_fewer_passes(monkeypatch):
    long = "\n" * build._LONG
    assert "-O1" in flags(long, monkeypatch, gcc=True)
    assert "-O1" not in flags(long[1:], monkeypatch, gcc=True)
    assert "-O1" not in flags(long, monkeypatch, gcc=False)


def test_the_last_flag_decides_how_much_is_optimised(monkeypatch):
    quick = flags("\n" * build._LONG, monkeypatch, gcc=True)
    assert [each for each in quick if each.startswith("-O")] == ["-O3", "-O1"]


def test_programs_that_call_the_library_link_it(monkeypatch):
    text = shared.call("softmax", 2, (False,), "1, 1, 1, {0}, {1}")
    monkeypatch.setattr(
        build.kernels, "linkable", lambda *here: [f"the-{each}.o" for each in here[2]]
    )
    assert "the-rows.cpp.o" in flags(text, monkeypatch, gcc=True)
    assert "the-product.cpp.o" not in flags(text, monkeypatch, gcc=True)
    assert "the-rows.cpp.o" not in flags("int x;", monkeypatch, gcc=True)


class Attention(torch.nn.Module):
    """Large enough for the kernel."""

    def forward(self, q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).mean()


PROGRAMS = {name: (model.fresh, model.batch) for name, model in MODELS.items() if name != "affine"}
PROGRAMS["attention"] = Attention, lambda: (torch.zeros(2, 4, 64, 32),)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_may_need_is_no_less_than_what_it_needs(name):
    make, rows = PROGRAMS[name]
    lowering, model = Emitted(), make()
    rule = rule_for(model) if list(model.parameters()) else None
    (program,) = captured(model, rows(), rule=rule).programs
    at_most = lowering.possible_kernels(program)
    needs = lowering.required_kernels(passes.run_only(program, lowering.passes))
    assert set(needs) <= set(at_most)
    assert arena.NAME in at_most
    if name == "attention":
        assert "attention.cpp" in needs
        assert "conv.cpp" not in at_most


def test_a_long_segment_calls_parts_and_sizes_stand_once():
    layers = [each for _ in range(40) for each in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
    (program,) = captured(torch.nn.Sequential(*layers), [torch.zeros(32, 16)]).programs
    program = passes.run_only(passes.run(program), Emitted.passes)
    text = lowering.planned_code(program).source.text
    assert text.count("static const AbeleProduct ") == 2  # of packing, and of products
    parts = re.findall(r"^static .* int abele_segment_1_(\d+)\(", text, re.MULTILINE)
    each_time = len(lowering.planned_code(program).units) - text.count("abele_product_pack(")
    assert len(parts) == -(-each_time // source._LONGEST) > 1
    assert [text.count(f"|= abele_segment_1_{part}(") for part in parts] == [1] * len(parts)
