"""Compiling, loading and calling the code of a program."""

import gc
import json
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import arena, passes
from abele.arena import running
from abele.errors import CompilerError, CorruptExecutable
from abele.targets.cpu.compiler import compiler
from abele.targets.cpu.emitted import build, headers
from abele.targets.cpu.emitted.calling import from_text, to_text
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from helpers.emitted_operators import Case, Compiled
from helpers.emitted_programs import traced
from helpers.runs import resident_bytes

X = torch.linspace(-2, 3, 12).reshape(3, 4)


def added(x, total):
    total.add_(x)
    return (total * 2).t()


def with_torch(x, total):
    total.add_(torch.special.i0(x))
    return total.exp() - 1


@pytest.fixture(scope="module", params=[added, with_torch])
def program(request):
    case = traced("added", request.param, [X], [torch.ones(3, 4)])
    return passes.run_only(passes.run(case.program), Emitted.passes)


@pytest.fixture(scope="module")
def compiled(program):
    return Emitted().compile(program)


def expected(program, x, total):
    total = total.clone()
    (result,) = program.graph(*_in_order(program, x, total))
    return result, total


def _in_order(program, x, total):
    return [x if slot.name == "input0" else total for slot in program.inputs]


def called(program, run, x, total):
    (result,) = run(_in_order(program, x, total))
    return result, total


def agree(actual, wanted):
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.compiler
@pytest.mark.parametrize(
    "x",
    [X, X.t().contiguous().t(), X[:1].expand(3, 4), torch.cat([X, X], 1)[:, 2:6], X.flip(0)],
    ids=["as before", "transposed", "expanded", "a slice", "another"],
)
def test_inputs_lie_in_any_order(program, compiled, x):
    before, total = x.clone(), torch.ones(3, 4)
    actual = called(program, compiled.run, x, total)
    agree(actual, expected(program, x, torch.ones(3, 4)))
    assert torch.equal(x, before)


@pytest.mark.compiler
def test_state_in_another_order_is_written_where_it_lies(program, compiled):
    total = torch.ones(4, 3).t()
    agree(called(program, compiled.run, X, total), expected(program, X, torch.ones(3, 4)))


@pytest.mark.compiler
def test_state_may_move_between_calls(program, compiled):
    for total in (torch.ones(3, 4), torch.zeros(3, 4), torch.ones(4, 3).t()):
        wanted = expected(program, X, total)
        agree(called(program, compiled.run, X, total), wanted)


@pytest.mark.compiler
def test_memory_that_was_released_is_there_again():
    x, total = torch.rand(1024, 1024), torch.zeros(1024, 1024)
    case = traced("sums", lambda x, total: (x @ (x.cumsum(0) @ x), total.add_(x)), [x], [total])
    made = Emitted().compile(passes.run_only(passes.run(case.program), Emitted.passes))
    first, *_ = made.run([x, total])
    before = resident_bytes()
    made.release()
    assert before - resident_bytes() > 3 * 2**20
    again, *_ = made.run([x, total])
    assert torch.equal(first, again)


@pytest.mark.compiler
def test_state_may_lie_in_another_order_at_the_same_address(program, compiled):
    memory = torch.arange(12.0)
    for total in (memory.view(3, 4), memory.view(4, 3).t()):
        wanted = expected(program, X, total)
        agree(called(program, compiled.run, X, total), wanted)


@pytest.mark.compiler
def test_a_call_that_failed_leaves_nothing_behind(program, compiled):
    kept = weakref.ref(batch := torch.ones(3, 4))
    with pytest.raises(ValueError, match="has 2 inputs, not 1"):
        compiled.run([batch])
    del batch
    gc.collect()  # the error's frames
    assert kept() is None
    agree(
        called(program, compiled.run, X, torch.ones(3, 4)), expected(program, X, torch.ones(3, 4))
    )


@pytest.mark.compiler
def test_results_are_the_callers(program, compiled):
    first, _ = called(program, compiled.run, X, torch.ones(3, 4))
    kept = first.clone()
    second, _ = called(program, compiled.run, X * 2, torch.ones(3, 4))
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@pytest.mark.compiler
def test_views_that_torch_makes_of_kept_memory_are_the_callers():
    case = traced("bits", lambda x: (x * 3).view(torch.int32), [X])
    run = Emitted().compile(passes.run(case.program)).run
    (first,) = run([X])
    run([X * 2])
    assert torch.equal(first, (X * 3).view(torch.int32))


@pytest.mark.compiler
@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_what_is_expanded_and_returned_has_elements_of_its_own(kind):
    x = X[:, :1].to(kind)
    case = traced("expanded", lambda x: x.expand(3, 4), [x])
    program = passes.run_only(passes.run(case.program), Emitted.passes)
    (result,) = Emitted().compile(program).run([x])
    assert torch.equal(result, x.expand(3, 4))
    result[0, 0] += 1
    assert result[0, 1] == x[0, 0]


@pytest.mark.compiler
def test_threads_of_python_do_not_disturb_each_other(program, compiled):
    results = {}

    def work(number):
        for _ in range(50):
            results[number] = called(program, compiled.run, X * number, torch.ones(3, 4))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number in range(4):
        agree(results[number], expected(program, X * number, torch.ones(3, 4)))


@pytest.mark.compiler
def test_loaded_code_gives_the_same_bits(program, compiled):
    loaded = Emitted().load(program, compiled.payload)
    pairs = zip(
        called(program, loaded.run, X, torch.ones(3, 4)),
        called(program, compiled.run, X, torch.ones(3, 4)),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.compiler
def test_conservative_code_computes_and_loads_alike(program, compiled):
    code = Emitted().compile_conservatively(program)
    assert code.payload != compiled.payload
    loaded = Emitted().load(program, code.payload)
    wanted = expected(program, X, torch.ones(3, 4))
    agree(called(program, code.run, X, torch.ones(3, 4)), wanted)
    agree(called(program, loaded.run, X, torch.ones(3, 4)), wanted)


def test_conservative_flags_come_after_those_in_use():
    parts = build.command("int x;", "a.cpp", "a.so", ["kernel.o"])
    last = max(index for index, part in enumerate(parts) if part.startswith("-O"))
    assert parts[last] == "-O2"
    assert "-fno-tree-vectorize" in parts[last:]
    assert "-include" not in parts
    assert "kernel.o" in parts


def test_flags_of_one_compiler_are_kept_from_others(monkeypatch):
    monkeypatch.setattr(headers, "is_gcc", lambda path: False)
    assert not set(build._READS_STAY) & set(build.command("int x;", "a.cpp", "a.so"))
    monkeypatch.setattr(headers, "is_gcc", lambda path: True)
    assert set(build._READS_STAY) < set(build.command("int x;", "a.cpp", "a.so"))


@pytest.mark.compiler
def test_code_that_the_compiler_refuses_names_the_program():
    with pytest.raises(CompilerError, match="Program 'step' could not be compiled"):
        build.compiled("step", "int x")


def test_what_is_no_library_is_not_loaded():
    with pytest.raises(CorruptExecutable, match="compiled code cannot be loaded"):
        build.loaded(b"no library")


def with_large_results(x, total):
    first = torch.special.i0(x)
    second = torch.special.i0(first.sin())
    total.add_(torch.special.i0(second.cos()))
    return torch.special.i1(second + total)


@pytest.mark.compiler
def test_what_torch_makes_between_has_its_place_until_nothing_reads_it(monkeypatch):
    assert arena.made(compiler() or "g++")
    x = torch.rand(64, 64)
    case = traced("large", with_large_results, [x], [torch.ones(64, 64)])
    step = passes.run_only(passes.run(case.program), Emitted.passes)
    use = Emitted().memory(step)
    assert len([each for each in use.inside if each.size == x.nbytes]) >= 3
    assert use.shared == 2 * x.nbytes  # the first is gone when the third is made
    run, before = Emitted().compile(step).run, running.counts()
    results = [run(_in_order(step, x, torch.ones(64, 64)))[0] for _ in range(3)]
    counts = [b - a for a, b in zip(before, running.counts(), strict=True)]
    assert counts == [9, 0, 0]
    monkeypatch.setattr(arena, "available", lambda: False)
    monkeypatch.setattr(running, "available", lambda: False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert Emitted().memory(step).shared is None
    plain = Emitted().compile(step).run(_in_order(step, x, torch.ones(64, 64)))[0]
    assert all(torch.equal(each, plain) for each in results)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_torch_may_make_less_than_it_says_for_its_own_gradient(weights):
    table = torch.arange(24.0, dtype=weights).reshape(6, 4) / 16
    words, bags = torch.tensor([0, 3, 5, 1, 1]), torch.tensor([0, 2])

    def function(table, words, bags):
        return F.embedding_bag(words, table, bags, mode="sum")

    compiled = Compiled({"bag": Case(function, (table, words, bags), gradients=True)})
    for one, other in zip(compiled.run("bag"), compiled.interpreted("bag"), strict=True):
        assert torch.equal(one, other)


# -- how code is called, as text: read again it is the same, and what is damaged is refused --------


LARGE = torch.linspace(-2, 3, 2**14).reshape(2**7, 2**7)
TABLE = torch.tensor([1.5, -2.0, 0.25, 3.0])


def with_a_constant(x, total):
    total.mul_(TABLE)
    return x * TABLE + total


def sorted_rows(x, total):
    values, order = torch.sort(x, dim=1, descending=True)
    total.add_(values)
    return order.to(x.dtype) * total


FUNCTIONS = (added, with_torch, with_a_constant, sorted_rows)


def planned(function, x=X):
    """A program before passes of lowerings, and how its code is called."""
    program = passes.run(traced("case", function, [x], [torch.ones(x.shape)]).program)
    return program, planned_code(passes.run_only(program, Emitted.passes)).calling()


@pytest.fixture(params=FUNCTIONS, ids=lambda function: function.__name__)
def written(request):
    program, calling = planned(request.param)
    text = to_text(calling)
    assert text is not None
    return program, calling, text


def test_what_is_read_is_written_alike(written):
    program, _, text = written
    again = from_text(text, program)
    assert again is not None
    assert json.loads(to_text(again)) == json.loads(text)


@pytest.mark.compiler
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_code_gives_the_same_bits_with_its_plan_and_without_lowering(function):
    program, _ = planned(function)
    compiled = Emitted().compile(passes.run_only(program, Emitted.passes))
    assert compiled.plan is not None
    loaded = Emitted().load_planned(program, compiled.payload, compiled.plan)
    assert loaded is not None
    assert (loaded.payload, loaded.plan) == (compiled.payload, compiled.plan)
    results = []
    for each in (compiled, loaded):
        total = torch.linspace(0, 1, X.numel()).reshape(X.shape)
        given = [X.clone() if slot.name == "input0" else total for slot in program.inputs]
        results.append((*each.run(given), total))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 3', '"format": 0'),
        ('"table"', '"tables"'),
        ('"input"', '"elsewhere"'),
        ('"float32"', '"load"'),
        ("]}", "]"),
    ],
)
def test_a_damaged_text_is_refused(old, new):
    program, calling = planned(added)
    text = to_text(calling)
    assert old in text
    with pytest.raises(CorruptExecutable, match="how the code is called cannot be read"):
        from_text(text.replace(old, new), program)


def test_an_operator_that_is_unknown_is_refused():
    program, calling = planned(with_torch)
    text = to_text(calling).replace("aten::i0", "aten::i7")
    with pytest.raises(CorruptExecutable, match="torch does not know 'aten::i7"):
        from_text(text, program)


@pytest.mark.parametrize(
    ("function", "other", "what"),
    [
        (added, lambda x, total: total.add_(x).sum(), "other results"),
        (with_a_constant, lambda x, total: total.add_(x) * 2, "other constants|no attribute"),
    ],
)
def test_what_was_written_for_another_program_is_refused(function, other, what):
    program, _ = planned(other)
    _, calling = planned(function)
    with pytest.raises(CorruptExecutable, match=what):
        from_text(to_text(calling), program)


def test_inputs_of_another_shape_are_refused():
    program, _ = planned(added, torch.ones(5, 4))
    _, calling = planned(added)
    with pytest.raises(CorruptExecutable, match="the program has other inputs"):
        from_text(to_text(calling), program)


def test_places_of_torchs_tensors_are_those_of_so_many_threads():
    program, calling = planned(with_torch, LARGE)
    assert calling.places is not None
    text = to_text(calling)
    assert from_text(text, program) is not None
    data = json.loads(text)
    data["threads"] += 1
    assert from_text(json.dumps(data), program) is None


def test_code_alone_is_called_alike_by_any_number_of_threads():
    program, calling = planned(added, LARGE)
    data = json.loads(to_text(calling))
    data["threads"] += 1
    assert from_text(json.dumps(data), program) is not None


def test_what_torch_has_no_name_for_is_not_written():
    def strided(x, total):
        total.add_(1)
        return torch.as_strided_copy(x, (2, 2), (1, 2), 1) * 2

    assert to_text(planned(strided)[1]) is None
