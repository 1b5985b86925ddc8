"""Tensors of a program at planned places in one piece of memory."""

import functools
import gc
import threading

import pytest
import torch
from torch import nn

from abele import arena
from abele.arena import measured, places, running
from abele.program import memory
from abele.targets.cpu.compiler import compiler
from abele.targets.reference import Interpreter
from helpers.models import plain_loss
from helpers.runs import captured, resident_bytes, rule_for
from helpers.warm_python import run_program


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x * 2, plain_loss(self.second(self.first(x).tanh()).tanh() - x, "mean")


def program(rows=64):
    torch.manual_seed(0)
    (step,) = captured(Model(), (torch.randn(rows, 64),)).programs
    return step


def arguments(step):
    torch.manual_seed(1)
    return [torch.randn(slot.shape).to(slot.dtype) for slot in step.inputs]


@pytest.fixture
def library():
    path = compiler()
    if path is None:
        pytest.skip("no C++ compiler")
    assert arena.made(path)


def placed(*tensors):
    """Offsets of tensors, each given as first moment, last moment and size, and their total."""
    return places.offsets([size for *_, size in tensors], [life for *life, _ in tensors])


def needed(step):
    inside = arena.placed(memory.of_graph(step)).inside
    lives = [(each.first, each.last) for each in inside]
    return places.offsets([each.size for each in inside], lives)[1]


def test_tensors_that_live_at_the_same_time_do_not_overlap():
    torch.manual_seed(0)
    starts, lengths, sizes = (torch.randint(1, n, (60,)).tolist() for n in (40, 9, 9000))
    tensors = [(s, s + n, z) for s, n, z in zip(starts, lengths, sizes, strict=True)]
    at, total = placed(*tensors)
    for i, (first, last, size) in enumerate(tensors):
        assert at[i] % places.ALIGNMENT == 0
        assert at[i] + size <= total
        for j, (other_first, other_last, other_size) in enumerate(tensors[:i]):
            together = first <= other_last and other_first <= last
            assert not together or at[i] + size <= at[j] or at[j] + other_size <= at[i]


def test_those_that_live_one_after_the_other_share_a_place():
    _, total = placed((0, 1, 6400), (2, 3, 6400), (0, 3, 640))
    assert total == 7040


def test_a_tensor_goes_into_the_smallest_gap_while_it_lives():
    large = [(0, 9, 64 * size) for size in (90, 80, 70)]
    gaps = [(0, 1, 64 * size) for size in (60, 50, 40)]  # free from moment 2 on
    between = [(0, 9, 64 * size) for size in (59, 49, 39)]
    late = 2, 9, 64 * 38
    offsets, total = placed(*large, *gaps, *between, late)
    assert offsets[-1] == offsets[5]  # where the gap of 40 was, not that of 50 or 60
    assert total == 64 * (90 + 80 + 70 + 60 + 50 + 40 + 59 + 49 + 39)


def test_small_tensors_and_results_have_no_place():
    use = memory.of_graph(program())
    planned = arena.placed(use)
    assert all(each.size >= places.LEAST for each in planned.inside)
    assert {each.node for each in use.pieces} == {
        each.node for each in (*planned.pieces, *planned.inside)
    }
    assert planned.reserved <= max(use.needed())


def test_the_bits_are_those_without_and_tensors_go_to_their_places(library, monkeypatch):
    step = program()
    before = running.counts()
    run = Interpreter().compile(step).run
    results = [run(arguments(step)) for _ in range(3)]
    at_place, _, elsewhere = (b - a for a, b in zip(before, running.counts(), strict=True))
    assert at_place >= 3 * len(arena.placed(memory.of_graph(step)).inside)
    assert elsewhere == 0
    monkeypatch.setattr(running, "available", lambda: False)
    plain = Interpreter().compile(step).run(arguments(step))
    for each in results:  # those of earlier calls are still what they were
        assert all(torch.equal(a, b) for a, b in zip(each, plain, strict=True))


def test_memory_goes_back_with_the_last_program(library):
    # Larger than any program that another test or its thread may still hold in this process.
    step = program(rows=2**16)
    run = Interpreter().compile(step).run
    results, _ = (run(arguments(step)) for _ in range(2))
    assert running.bytes_of_slabs() >= needed(step)
    before = resident_bytes()
    arena.release()
    assert before - resident_bytes() > needed(step) / 2
    assert all(map(torch.equal, run(arguments(step)), results))
    del run
    gc.collect()
    assert running.bytes_of_slabs() < needed(step)
    assert torch.isfinite(results[0]).all()


def test_memory_between_results_that_live_is_released(library):
    size = 2**22
    sizes = [4 * size] * 4
    uses = arena.Arena(places.Places(sizes, *places.offsets(sizes, [(0, 9)] * 4)))
    with uses.used():
        tensors = [torch.full((size,), float(index)) for index in range(4)]
    del tensors[2:], tensors[0]
    before = resident_bytes()
    arena.release()
    assert before - resident_bytes() > 2.9 * 4 * size
    assert (tensors[0] == 1).all()


def test_a_program_that_runs_is_not_written_again_to_be_measured():
    step = program()
    first = Interpreter().compile(step)
    assert Interpreter().compile(step).run is first.run


def test_memory_stays_while_the_largest_program_needs_it(library):
    step = program(rows=2**16 + 1)  # no whole number of pages
    run = Interpreter().compile(step).run
    for _ in range(2):
        run(arguments(step))
    arena.Arena(arena.planned(memory.of_graph(program())))
    gc.collect()
    assert running.bytes_of_slabs() >= needed(step)
    del run


def test_a_tensor_that_outlives_its_program_keeps_its_memory(library):
    with arena.Arena(arena.planned(memory.of_graph(program()))).used():
        outlives = torch.full((64, 128), 3.0)
    gc.collect()
    others = [torch.zeros(64, 128) for _ in range(50)]
    assert (outlives == 3).all()
    assert not any(each.any() for each in others)


_LOOP = """
import os, re, sys, torch
from abele.arena import running
assert running.available()
def anonymous(name):
    (size,) = re.findall(rf"^{name}:\\s*(\\d+)", open("/proc/self/status").read(), re.M)
    return int(size) * 1024
for argument in sys.argv[1:]:
    if os.fork():  # a process for each, which has loaded torch already
        assert os.wait()[1] == 0
        continue
    sizes = [int(each) for each in argument.split()]
    before = anonymous("RssAnon")
    for _ in range(30):
        kept = [torch.zeros(size // 4) for size in sizes]
    print((anonymous("RssAnon") - before) / sum(sizes), flush=True)
    os._exit(0)
"""


def test_a_loop_that_keeps_results_until_there_are_new_ones_takes_memory_for_two(library):
    # 4 MB: less may have memory that imports have freed.
    done = run_program("-c", _LOOP, "4096000", "20480000", "2048000 51200 8192")
    assert done.returncode == 0, done.stderr
    times = [float(line) for line in done.stdout.splitlines()]
    assert len(times) == 3
    for each in times:
        assert 1 <= each < 2.3  # torch's own allocator: 3 to 7


def test_large_tensors_without_a_place_are_aligned_and_seen_by_the_profiler(library):
    with torch.profiler.profile(profile_memory=True) as profile:
        tensors = [torch.empty(size, dtype=torch.uint8) for size in (4097, 70001, 2**20 + 3)]
        assert all(each.data_ptr() % places.ALIGNMENT == 0 for each in tensors)
        del tensors
    sizes = [each.self_cpu_memory_usage for each in profile.events()]
    assert {4097, 70001, 2**20 + 3} <= set(sizes)
    assert sum(sizes) == 0


def test_a_tensor_that_a_process_cannot_have_is_refused_as_ever(library):
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(2**60, dtype=torch.uint8)


def test_other_threads_are_none_of_its_business(library):
    with arena.Arena(arena.planned(memory.of_graph(program()))).used():
        before = running.counts()
        thread = threading.Thread(target=lambda: torch.zeros(64, 128))
        thread.start()
        thread.join()
        assert running.counts() == before


def test_a_program_inside_another_has_places_of_its_own(library):
    outer, inner = (arena.Arena(arena.planned(memory.of_graph(program()))) for _ in range(2))
    with outer.used():
        first = torch.full((64, 128), 1.0)
        with inner.used():
            second = torch.full((64, 128), 2.0)
        third = torch.full((64, 128), 3.0)
    for value, tensor in enumerate((first, second, third), 1):
        assert (tensor == value).all()


def test_without_the_library_programs_run_as_ever(monkeypatch):
    monkeypatch.setattr(running, "available", lambda: False)
    step = program()
    assert torch.isfinite(Interpreter().compile(step).run(arguments(step))[0]).all()


class Images(nn.Module):
    """Convolutions that the library brings into another order: of few channels, wide and turned."""

    def __init__(self, stride=1):
        super().__init__()
        self.narrow = nn.Conv2d(3, 20, 3, padding=1)
        self.norm = nn.BatchNorm2d(20)
        self.wide = nn.Conv2d(20, 32, 3, stride, padding=1)
        self.turned = nn.ConvTranspose2d(32, 24, 2, stride=2)

    def forward(self, x):
        y = self.wide(self.norm(self.narrow(x)).relu()).relu()
        return plain_loss(self.turned(y), "mean")


class Back(nn.Module):
    """Two transposed convolutions; windows overlap, or leave an edge that they do not reach."""

    def __init__(self, window, stride, *, padding=0, further=0, bias=True):
        super().__init__()
        self.wide = nn.Conv2d(3, 40, 3, padding=1)
        self.back = nn.ConvTranspose2d(40, 24, window, stride, padding, further, bias=bias)
        self.again = nn.ConvTranspose2d(24, 5, window, stride, padding, further, bias=bias)

    def forward(self, x):
        return plain_loss(self.again(self.back(self.wide(x).relu()).relu()), "mean")


class Small(nn.Module):
    """Convolutions of single images that are so small that torch computes them itself."""

    def __init__(self):
        super().__init__()
        self.strided = nn.Conv2d(3, 16, 3, 2, padding=1)
        self.back = nn.ConvTranspose2d(16, 12, 3, 2)
        self.step, self.place = nn.ConvTranspose2d(12, 6, 2), nn.ConvTranspose2d(6, 8, 1)

    def forward(self, x):
        y = self.back(self.strided(x).relu()).relu()
        return plain_loss(self.place(self.step(y).relu()), "mean")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.joint = nn.Linear(32, 96)

    def forward(self, x):
        parts = self.joint(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(*parts)
        return plain_loss(seen.transpose(1, 2).flatten(2), "mean")


class Pointwise(nn.Module):
    """Convolutions of one place and of a slice, after which other elements lie."""

    def __init__(self):
        super().__init__()
        self.sliced = nn.Conv2d(1, 8, 5, padding=2)
        self.narrow, self.wide = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 32, 1)

    def forward(self, x):
        y = self.narrow(self.sliced(x[:, 1:2]).relu()).relu()
        return plain_loss(self.wide(y), "mean")


class FewChannels(nn.Module):
    """Convolutions of one, two and three channels, as they lie or in blocks, and back to one."""

    def __init__(self, back=True, stride=2):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3, 2, padding=1)
        self.three = nn.Conv2d(3, 12, 5, padding=2)
        self.back = nn.ConvTranspose2d(12, 1, 2, stride) if back else nn.Identity()

    def forward(self, x):
        y = self.three(self.two(self.one(x).relu()).relu()).relu()
        return plain_loss(self.back(y), "mean")


class Half(nn.Module):
    """Convolutions and products in half, whose sums are made in float32."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(3, 32, 3, 2, padding=1)
        self.next = nn.Conv2d(32, 32, 3, padding=1)
        self.turned = nn.ConvTranspose2d(32, 24, 2, stride=2)
        self.linear = nn.Linear(24, 128)
        self.half()

    def forward(self, x):
        y = self.turned(self.next(self.wide(x).relu()).relu())
        made = self.linear(y.mean((2, 3)))
        return nn.functional.mse_loss(made, torch.ones_like(made))


class HalfByGroups(nn.Module):
    """Convolutions of channels by themselves and in groups, whose results torch joins."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Conv2d(3, 32, 3, 2, padding=1)
        self.alone = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.across = nn.Conv2d(32, 64, 1)
        self.groups = nn.Conv2d(64, 64, 3, 2, padding=1, groups=4)
        self.half()

    def forward(self, x):
        y = self.across(self.alone(self.narrow(x).relu()).relu())
        made = self.groups(y.relu()).flatten(1)
        return nn.functional.mse_loss(made, torch.ones_like(made))


class HalfWithChannelsLast(nn.Module):
    """Likewise with channels last, where the weight's gradient is added up in float32."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(4, 32, 3, 2, padding=1)
        self.next = nn.Conv2d(32, 32, 3, padding=1)
        self.across = nn.Conv2d(32, 48, 1)
        self.half()

    def forward(self, x):
        y = x.contiguous(memory_format=torch.channels_last)
        y = self.across(self.next(self.wide(y).relu()).relu())
        return nn.functional.mse_loss(y, torch.ones_like(y))


class Upsampling(nn.Module):
    """Of a small image, which is computed with channels last."""

    def forward(self, x):
        y = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        return plain_loss(y.relu(), "mean")


class Sequences(nn.Module):
    def __init__(self, units=48, *, rows_first=True):
        super().__init__()
        self.lstm = nn.LSTM(32, units, batch_first=rows_first)

    def forward(self, x):
        return plain_loss(self.lstm(x)[0], "mean")


CASES = {
    "upsampling": (Upsampling, (4, 8, 32, 24)),
    "pointwise": (Pointwise, (16, 2, 32, 32)),
    "few pointwise": (Pointwise, (8, 2, 32, 32)),
    "convolutions": (Images, (4, 3, 32, 32)),
    "strided": (lambda: Images(2), (4, 3, 32, 32)),
    "attention": (Attention, (8, 64, 32)),
    "lstm": (Sequences, (64, 16, 32)),
    "lstm without backward": (lambda: Sequences().eval(), (64, 16, 32)),
}
BACK = {
    "overlapping": {"window": 4, "stride": 2, "padding": 1},
    "by three": {"window": 7, "stride": 3, "padding": 2},
    "to odd sides": {"window": 3, "stride": 2, "padding": 1},
    "to odd sides without bias": {"window": 3, "stride": 2, "padding": 1, "bias": False},
    "to one more": {"window": 3, "stride": 2, "padding": 1, "further": 1},
    "apart": {"window": 2, "stride": 3, "further": 1},
    "of another width": {"window": (3, 5), "stride": (3, 2), "padding": (0, 1)},
}
TRAINED = {
    "few channels": (lambda: FewChannels(back=False), torch.float32, (16, 1, 34, 34)),
    "few channels and back": (FewChannels, torch.float32, (16, 1, 34, 34)),
    "back step by step": (lambda: FewChannels(stride=1), torch.float32, (16, 1, 34, 34)),
    "strided": (lambda: Images(2), torch.float32, (4, 3, 32, 32)),
    **{
        f"back, {name}": (functools.partial(Back, **arguments), torch.float32, (4, 3, 16, 20))
        for name, arguments in BACK.items()
    },
    "lstm": (Sequences, torch.float32, (64, 16, 32)),
    "wide lstm": (lambda: Sequences(256, rows_first=False), torch.float32, (64, 16, 32)),
    "small": (Small, torch.float32, (1, 3, 32, 32)),
    "pointwise": (Pointwise, torch.float32, (16, 2, 32, 32)),
    "half": (Half, torch.float16, (4, 3, 32, 32)),
    "half by groups": (HalfByGroups, torch.float16, (4, 3, 64, 64)),
    "one image in half by groups": (HalfByGroups, torch.float16, (1, 3, 128, 128)),
    "half with channels last": (HalfWithChannelsLast, torch.float16, (4, 4, 64, 64)),
}


def counts_of_runs(step, runs=3):
    """Return at place, in a gap, elsewhere: tensors of each run of an interpreted program."""
    run, counts = Interpreter().compile(step).run, []
    for _ in range(runs):
        before = running.counts()
        run(arguments(step))
        counts.append(tuple(b - a for a, b in zip(before, running.counts(), strict=True)))
    return counts


@pytest.mark.parametrize("name", CASES)
def test_after_its_first_run_a_program_has_all_tensors_at_their_places(name, library):
    make, shape = CASES[name]
    (step,) = captured(make(), (torch.randn(shape),)).programs
    assert_all_are_at_their_places(step)


@pytest.mark.parametrize("name", TRAINED)
def test_after_its_first_step_training_has_all_tensors_at_their_places(name, library):
    make, dtype, shape = TRAINED[name]
    module = make()
    batch = (torch.randn(shape, dtype=dtype),)
    (step,) = captured(module, batch, rule=rule_for(module)).programs
    assert_all_are_at_their_places(step)


def assert_all_are_at_their_places(step):
    *_, last = counts_of_runs(step)
    assert last[0]
    assert last[1:] == (0, 0)


def test_a_tensor_that_only_some_runs_allocate_is_no_reason_to_plan_for_ever(library):
    with_plan = arena.Arena(arena.planned(memory.of_graph(program())))
    planned = []
    for size in (10_000, 20_000, 30_000, 40_000):
        with with_plan.used():
            torch.empty(size)
        planned.append(with_plan._places.sizes)
    assert planned == [[40_000], [80_000], [120_000], [120_000]]


@pytest.mark.parametrize("name", CASES)
def test_what_operators_allocate_inside_is_measured(name, library):
    make, shape = CASES[name]
    (step,) = captured(make(), (torch.randn(shape),)).programs
    estimated = arena.placed(arena.with_inner(memory.of_graph(step))).reserved
    run = Interpreter().compile(step).run
    given = arguments(step)
    with running.recorded() as allocations:
        results = run(given)
    assert results
    assert estimated == pytest.approx(places.planned_again(allocations).total, rel=0.05)


def test_larger_batches_are_extrapolated_and_operators_run_once(library, monkeypatch):
    (step,) = captured(Images(), (torch.randn(80, 3, 32, 32),)).programs
    estimated = arena.with_inner(memory.of_graph(step))
    monkeypatch.setattr(measured, "_run", None)  # is not called again
    assert arena.with_inner(memory.of_graph(step)) == estimated
    monkeypatch.undo()
    monkeypatch.setattr(measured, "_can_be_extrapolated", lambda node: False)
    monkeypatch.setattr(measured, "_measured", {})
    exact = arena.with_inner(memory.of_graph(step))
    assert len(exact.pieces) > len(memory.of_graph(step).pieces)
    assert estimated == exact


def test_an_operator_too_large_for_the_machine_is_not_run(library, monkeypatch):
    monkeypatch.setattr(measured, "_measured", {})
    monkeypatch.setattr(measured, "_SHARE", 0)
    (step,) = captured(Images(), (torch.randn(4, 3, 32, 32),)).programs
    use = memory.of_graph(step)
    assert arena.with_inner(use) == use
    assert not any(map(arena.is_measured, step.graph.graph.nodes))


def test_an_operator_that_cannot_be_run_alone_is_left_out(library, monkeypatch):
    def refuse(*_):
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(measured, "_measured", {})
    monkeypatch.setattr(measured, "_run", refuse)
    (step,) = captured(Images(), (torch.randn(4, 3, 32, 32),)).programs
    use = memory.of_graph(step)
    assert arena.with_inner(use) == use


def test_float32_copies_of_half_convolutions_are_counted(library):
    module = Half()
    batch = (torch.randn(4, 3, 32, 32, dtype=torch.float16),)
    (step,) = captured(module, batch, rule=rule_for(module)).programs
    use = arena.with_inner(memory.of_graph(step))
    inside = [each.size for each in use.pieces if each.inner]
    assert batch[0].numel() * 4 in inside


class Degenerate(nn.Module):
    """A scalar that is summed over its dimension 0, and convolutions of no images."""

    def __init__(self):
        super().__init__()
        self.conv, self.back = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 4, 2)

    def forward(self, x):
        none = x[:0]
        scalars = x.mean().sum(0), x.mean().mean(0)
        return (*scalars, self.conv(none), self.back(none), none.half().sum((0, 2)).float())


def test_scalars_and_no_images_have_a_plan():
    (step,) = captured(Degenerate(), (torch.randn(2, 3, 8, 8),)).programs
    assert len(Interpreter().compile(step).run(arguments(step))) == 5


@pytest.mark.parametrize(("planned", "switched"), [(True, 2), (False, 0)])
def test_without_the_library_freed_memory_stays_with_the_process(planned, switched, monkeypatch):
    settings = []
    monkeypatch.setattr(running, "available", lambda: False)
    monkeypatch.setattr("abele.arena.running._mallopt", lambda: lambda *each: settings.append(each))
    step = program()
    use = memory.of_graph(step)
    with arena.Arena(arena.planned(use) if planned else None).used():
        inside = len(settings)
    assert (inside, len(settings)) == (switched, 2 * switched)


def test_a_program_too_large_to_run_takes_no_places_from_others(library):
    sizes = [2**50]
    large = arena.Arena(places.Places(sizes=sizes, offsets=[0], total=2**50))
    step = program()
    run = Interpreter().compile(step).run
    with large.used():
        pass
    before = running.counts()
    run(arguments(step))
    assert running.counts()[0] > before[0]
    del large
