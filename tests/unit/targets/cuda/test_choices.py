"""How products are computed on a GPU: what is measured, kept and used."""

import contextlib

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.targets.cuda.emitted import choices, gemms, lowering
from abele.targets.cuda.emitted.choices import Choices
from abele.targets.cuda.emitted.gemms import OTHER, USUAL, ConcurrentGemms
from abele.targets.cuda.emitted.run import Runner
from abele.targets.reference import Interpreter
from abele.targets.translation.operations import Foreign, constants_of
from helpers.emitted_operators import program_of

HOST = torch.device("cpu")
SMALL, LARGE, WEIGHT = torch.randn(4, 3), torch.randn(2000, 3), torch.randn(3, 900)
INPUTS = SMALL, LARGE, WEIGHT


def products(small, large, weight):
    first, second = small @ weight, large @ weight
    return first, second, first @ weight.t(), second.half() @ weight.t().half()


@pytest.fixture(name="program")
def _program():
    return program_of(products, INPUTS, gradients=True)


@pytest.fixture(name="no_library")
def _no_library(monkeypatch):
    """Names of libraries as they are asked for, where torch has none of them."""
    names = []

    @contextlib.contextmanager
    def using(name):
        names.append(name)
        yield

    monkeypatch.setattr(gemms, "using", using)
    return names


def groups_of(plan):
    return [step.operations for step in plan.steps if isinstance(step, ConcurrentGemms)]


def test_products_that_leave_room_go_together(program):
    plan = lowering.planned(program)
    groups = groups_of(plan)
    assert groups
    for group in groups:
        assert 2 <= len(group) <= gemms.MOST
        written = {place.buffer for each in group for place in each.writes}
        read = {place.buffer for each in group for place in each.reads}
        assert not written & read
    alone = [each for each in plan.steps if isinstance(each, Foreign) and gemms.is_product(each)]
    assert any(each.writes[0].shape == (2000, 900) for each in alone)
    assert not any(gemms.leaves_room(each) for each in alone if each.writes[0].size > 1 << 20)


def test_what_is_faster_is_chosen_and_equal_products_are_measured_once(program, no_library):
    plan, measured = lowering.planned(program), []

    def clock(works):
        usual, _ = (work() for work in works)
        if usual is None:
            measured.append("group")
            return [10.0, 5.0 if len(measured) == 1 else 9.8]
        measured.append(usual.shape)
        return [10.0, 9.0 if usual.shape[0] == 2000 else 9.8]

    def together(works):
        for work in works:
            work()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemms, "together", together)
        patch.setattr(choices, "_by", lambda library, work: work)
        result = choices.measured(plan.steps, HOST, clock)
    assert result.fit(plan.steps)
    all_products = list(choices.products_of(plan.steps))
    for product, library in zip(all_products, result.libraries, strict=True):
        assert library == (OTHER if product.writes[0].shape[0] == 2000 else USUAL)
    assert len(measured) < len(all_products) + len(groups_of(plan)) + 1


def test_products_that_take_much_memory_are_not_measured(monkeypatch):
    monkeypatch.setattr(choices, "_MOST_BYTES", 10)
    plan = lowering.planned(program_of(lambda x, y: x @ y, (SMALL, WEIGHT), gradients=False))

    def clock(works):
        raise AssertionError

    assert choices.measured(plan.steps, HOST, clock) == Choices([USUAL], [])


def test_numbers_of_a_measurement_lie_as_those_of_the_program(no_library):
    def function(x, y):
        return x @ y.t()

    plan = lowering.planned(program_of(function, (SMALL, LARGE), gradients=False))
    layouts = []

    def clock(works):
        for work in works:
            work()
        return [1.0, 1.0]

    (product,) = choices.products_of(plan.steps)
    multiply = product.target

    def watched(*operands):
        layouts.append([(tuple(each.shape), each.stride()) for each in operands])
        return multiply(*operands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemms, "_PRODUCTS", {watched})
        product.target = watched
        choices.measured(plan.steps, HOST, clock)
    assert layouts == [[((4, 3), (3, 1)), ((3, 2000), (1, 3))]] * 2
    assert no_library == [USUAL, OTHER]


class Kernels:
    def use(self):
        pass

    def launch(self, *arguments):
        raise AssertionError("there are products alone")


@pytest.mark.parametrize("together", [False, True])
def test_each_product_is_computed_as_was_chosen(together, no_library, monkeypatch):
    def function(x, y, weight):
        return x @ weight, y @ weight, weight.t() @ weight

    inputs = SMALL, LARGE[:5], WEIGHT
    program = program_of(function, inputs, gradients=False)
    plan = lowering.planned(program)
    names, side = [OTHER, USUAL, OTHER], []

    def backwards(works):
        side.append(len(works))
        for work in reversed(works):
            work()

    monkeypatch.setattr(gemms, "together", backwards)
    (group,) = groups_of(plan)
    result = Choices(names, [together])
    constants = constants_of(program, plan.translation.constants)
    steps = plan.translation, plan.steps, plan.freed
    runner = Runner(*steps, [False] * 3, constants, Kernels(), HOST, result)
    actual = runner.run([each.clone() for each in inputs])
    expected = Interpreter().compile(program).run(list(inputs))
    assert all(map(torch.equal, actual, expected))
    assert no_library[: len(group)] == (names[::-1] if together else names)
    assert side == [len(group)] * together


def test_what_is_kept_comes_back_in_its_pieces():
    for made, codes in (
        (Choices([], []), []),
        (Choices([USUAL, OTHER], [True]), [b"one", b"three"]),
    ):
        assert choices.decoded(choices.encoded(made, codes)) == (made, codes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: code[:-1],
        lambda code: code + bytes(8),
        lambda code: b"something else",
        lambda code: code[: len(b"abele kernels\n")],
        lambda code: code.replace(b"cublaslt", b"magmablt"),
        lambda code: code.replace(b"libraries", b"something"),
        lambda code: code.replace(b"true", b"1234"),
        lambda code: code.replace(b"[", b"{"),
    ],
)
def test_damage_of_what_is_kept_is_noticed(damage):
    code = choices.encoded(Choices([USUAL, OTHER], [True]), [b"one", b"three"])
    with pytest.raises(CorruptExecutable, match="kernels of a program"):
        choices.decoded(damage(code))


def test_choices_for_other_products_do_not_fit(program):
    steps = lowering.planned(program).steps
    count = len(list(choices.products_of(steps)))
    groups = len(groups_of(lowering.planned(program)))
    assert Choices([USUAL] * count, [False] * groups).fit(steps)
    assert not Choices([USUAL] * (count - 1), [False] * groups).fit(steps)
    assert not Choices([USUAL] * count, []).fit(steps)


class Switch:
    """Torch's switch of libraries, where it is built with both."""

    def __init__(self):
        self.names = ["default"]

    def __call__(self, name=None):
        if name is not None:
            self.names.append(name)
        return self.names[-1]


def test_the_library_is_the_users_again_afterwards(monkeypatch, capfd):
    switch = Switch()
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", switch)
    gemms._use_silently_once.cache_clear()
    with gemms.using(None):
        assert switch.names == ["default"]
    with contextlib.suppress(KeyError), gemms.using(OTHER):
        assert switch() == OTHER
        raise KeyError
    assert switch() == "default"
    assert capfd.readouterr().err == ""
