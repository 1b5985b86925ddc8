"""An index that lies outside stops the call of a compiled program, and not the process."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import StepConfig, get_target
from abele.compilation.cache import ExecutableCache
from abele.errors import IndexCheckError
from abele.targets.base import Compiled
from abele.targets.index_checks import Checked, checked
from abele.targets.reference import Interpreter, Reference
from helpers.emitted_operators import Case
from helpers.emitted_operators import Compiled as Code
from helpers.runs import captured, rule_for, started

ROWS = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
ONES = torch.ones(3, 4)
INFER = StepConfig(training=False)


class CheckedInterpreter(Interpreter):
    """The interpreter, with the checks of a target that compiles."""

    def compile(self, program):
        return checked(program, super().compile(program))


class Checking(Reference):
    lowerings = (CheckedInterpreter(),)


class Indexed(nn.Module):
    """What a function makes of a table of five rows and an index."""

    def __init__(self, function):
        super().__init__()
        self.table, self.function = nn.Parameter(ROWS.clone()), function

    def forward(self, index):
        return self.function(self.table, index)


def _across(index):
    return index.view(3, 1).expand(3, 4)


INDEXING = {
    "embedding": lambda t, i: F.embedding(i, t),
    "embedding_bag": lambda t, i: F.embedding_bag(i.view(1, 3), t),
    "nll_loss": lambda t, i: F.cross_entropy(t[:4].t()[:3].repeat(1, 2)[:, :5], i),
    "nll_loss2d": lambda t, i: F.cross_entropy(t[:, :3].reshape(1, 5, 3, 1), i.view(1, 3, 1)),
    "gather": lambda t, i: t.gather(0, _across(i)),
    "scatter": lambda t, i: t.scatter(0, _across(i), 1.0),
    "scatter_add": lambda t, i: t.scatter_add(0, _across(i), ONES),
    "index_select": lambda t, i: t.index_select(-2, i),
    "index_add": lambda t, i: t.index_add(0, i, ONES),
    "index_copy": lambda t, i: t.index_copy(0, i, ONES),
    "index_fill": lambda t, i: t.index_fill(0, i, 1.0),
    "index": lambda t, i: t[i],
    "index of what follows": lambda t, i: t.t()[:, (i.int() + 1).long() - 1],
    "index_put": lambda t, i: t.index_put((i,), ONES, accumulate=True),
    "take": lambda t, i: t[:, 0].contiguous().take(i),
}


TARGETS = {"before it runs": Checking(), "after torch failed": Reference()}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", INDEXING)
def test_each_operator_takes_what_plain_pytorch_takes_and_refuses_the_rest(name, target):
    function = INDEXING[name]
    session, _ = started(Indexed(function), (torch.tensor([0, 4, 2]),), None, INFER, target=target)
    for value in (4, -1, 5, -6, -100):
        index = torch.tensor([0, value, 2])
        try:
            expected = function(ROWS, index)
        except (IndexError, RuntimeError):
            text = rf"test_index_checks\.py:\d+ in .*: {name.split()[0]} takes .*, found {value}\."
            with pytest.raises(IndexCheckError, match=text):
                session.step([index])
        else:
            (output,) = session.step([index])
            torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_an_index_found_by_another_index_is_named_by_its_own_line():
    names = torch.tensor([3, 4, 9])
    session, _ = started(Indexed(lambda t, i: t[names[i]]), (ONES[0].long()[:3],), None, INFER,
                         target=Checking())  # fmt: skip
    with pytest.raises(IndexCheckError, match=r"index takes the indices -3 to 2, found 7\."):
        session.step([torch.tensor([0, 7, 1])])
    with pytest.raises(IndexCheckError, match=r"index takes the indices -5 to 4, found 9\."):
        session.step([torch.tensor([0, 2, 1])])


class Counting(Compiled):
    """Counts its calls, of whichever kind."""

    def __init__(self):
        super().__init__(self._count)
        self.calls = 0

    def bound(self, arguments, batch, *, adopted=False):
        return self._count

    def _count(self, rows):
        self.calls += 1
        return []


FROM_THE_BATCH = {
    "as it comes": lambda t, i: t[i.view(-1)],
    "in another order": lambda t, i: F.embedding(i.reshape(3, 1).t().contiguous(), t),
    "a part of it": lambda t, i: t[i.view(3)[1:]],
    "computed from it": lambda t, i: t[i.view(3) * 2 - i.view(3)],
}


@pytest.mark.parametrize("name", FROM_THE_BATCH)
def test_calls_with_the_same_state_look_at_the_batch_alone(name):
    index = torch.tensor([[0, 4, 2]])
    program = captured(Indexed(FROM_THE_BATCH[name]), (index,), INFER).programs[0]
    counting = Counting()
    call = checked(program, counting).bound([ROWS, index], [1])
    call([index])
    with pytest.raises(IndexCheckError, match=r"takes the indices -?\d to 4, found 7\."):
        call([torch.tensor([[0, 4, 7]])])
    assert counting.calls == 1


def test_bits_of_other_numbers_are_looked_at_as_indices():
    def rows(index):
        return torch.tensor(index).view(torch.float64)

    function = Indexed(lambda t, i: t[i.view(torch.int64)])
    session, _ = started(function, (rows([0, 4, 2]),), None, INFER, target=Checking())
    (output,) = session.step([rows([0, 4, 1])])
    torch.testing.assert_close(output, ROWS[[0, 4, 1]], rtol=0, atol=0)
    with pytest.raises(IndexCheckError, match=r"found 5\."):
        session.step([rows([0, 5, 1])])


def test_indices_that_are_state_are_looked_at_in_each_call():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(ROWS.clone())
            self.register_buffer("rows", torch.tensor([0, 4, 2]))

        def forward(self, x):
            return self.table[self.rows] + x

    program = captured(Kept(), (ONES,), INFER).programs[0]
    call = checked(program, Counting())
    assert call.bound([ROWS, torch.tensor([0, 4, 2]), ONES], [2]) is None
    with pytest.raises(IndexCheckError, match=r"found 9\."):
        call.run([ROWS, torch.tensor([0, 9, 2]), ONES])


class Classifier(nn.Module):
    """Words, their mean, running averages, and the class of each text."""

    def __init__(self):
        super().__init__()
        self.words, self.norm, self.scores = nn.Embedding(50, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, words, classes):
        scores = self.scores(self.norm(self.words(words).mean(1)))
        return scores, F.cross_entropy(scores, classes)


@pytest.mark.compiler
def test_compiled_training_goes_on_after_a_wrong_index(tmp_path):
    reason = get_target("cpu").cannot_compile()
    if reason is not None:
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(0, 50, (512, 16), generator=generator)
    classes = torch.randint(0, 4, (512,), generator=generator)
    classes[3] = -100  # what cross_entropy ignores
    texts = []
    for origin in ("miss", "hit"):
        model = Classifier()
        session, record = started(model, (words, classes), rule_for(model), target="cpu",
                                  cache=ExecutableCache(tmp_path))  # fmt: skip
        assert record.cache == origin
        session.step([words, classes])
        before = _state(session)
        for wrong in ([words.clone(), classes], [words, classes.clone()]):
            wrong[len(texts) % 2].view(-1)[100] = 50
            with pytest.raises(IndexCheckError) as caught:
                session.step(wrong)
            texts.append(str(caught.value))
            for name, value in _state(session).items():
                assert torch.equal(value, before[name]), name
        session.step([words, classes])
        assert not torch.equal(_state(session)["words.weight"], before["words.weight"])
        session.close()
    assert texts[:2] == texts[2:]
    assert "embedding takes the indices 0 to 49, found 50." in texts[0]
    assert "nll_loss takes the indices 0 to 3 and -100, which it ignores, found 50." in texts[1]


def _state(session):
    tensors = {**session.params, **session.buffers[0], **session.read_optimizer_state()}
    return {name: value.clone() for name, value in tensors.items()}


@pytest.mark.compiler
def test_torch_computes_rows_of_indices_that_are_not_checked_before():
    """Torch raises there; code of ours would read memory of others."""
    generator = torch.Generator().manual_seed(1)
    x, table = (torch.randn(rows, 5, generator=generator) for rows in (6, 5))

    def function(x, table):
        rows = ((x @ table)[:, 0] * 9).long()
        return F.embedding(rows, table), F.cross_entropy(x, rows)

    code = Code({"case": Case(function, (x, table), gradients=True)})
    assert {"embedding.default", "nll_loss_forward.default"} <= code.calls("case").keys()
    with pytest.raises(IndexError, match="out of range"):
        code.run("case")


def test_kernels_behind_a_check_are_tested():
    class Failing(Compiled):
        def kernel_problem(self, *, noted):
            return f"wrong, noted: {noted}"

    code = Checked(Failing(lambda inputs: inputs), lambda inputs: None)
    assert code.kernel_problem(noted=True) == "wrong, noted: True"
    assert Compiled(lambda inputs: inputs).kernel_problem(noted=False) is None
