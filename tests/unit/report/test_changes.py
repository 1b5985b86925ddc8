"""What passes did, as lines of text that went and came."""

import torch

from abele import passes
from abele.program.core import node_lines
from abele.report import facts
from abele.report.page import page
from abele.report.recorder import LONGEST_CHANGE, Changes
from abele.targets import get_target
from helpers.reported import journal_of, recorded
from helpers.runs import captured, started


class Twice(torch.nn.Module):
    """Computes the same thing twice, which a pass finds out."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)

    def forward(self, x):
        return (torch.exp(self.fc(x)) + torch.exp(self.fc(x))).mean()


def test_a_pass_says_what_it_took_away():
    module = Twice()
    (program,) = captured(module, [torch.ones(2, 4)]).programs
    changes = Changes()
    with passes.watched(changes):
        done = passes.run(program)
    passes.run(program)  # nobody watches
    assert set(changes.of_stamps) == set(done.history)
    by = {each.by: each for each in changes.of_stamps.values()}
    assert "- exp_1 = aten.exp.default" in by["common_subexpressions"].text
    assert by["common_subexpressions"].removed > by["common_subexpressions"].added
    before = by.pop("capture")
    assert before.after.splitlines() == node_lines(program)
    last = [each.after for each in by.values() if each.after][-1]
    assert last.splitlines() == node_lines(done)
    assert all(bool(each.after) == bool(each.removed + each.added) for each in by.values())
    removed = sum(each.removed - each.added for each in by.values())
    assert removed == len(program.graph.graph.nodes) - len(done.graph.graph.nodes)


def test_the_page_shows_what_passes_did():
    changes = Changes()
    with passes.watched(changes):
        session, record = started(Twice(), [torch.ones(2, 4)], target=get_target("reference"))
    run = recorded(session, record, facts.programs(session.executable, record, changes.of_stamps))
    text = page(run, journal_of())
    assert "common_subexpressions: " in text
    assert "- exp_1 = aten.exp.default" in text


def test_a_long_change_is_cut_off(monkeypatch):
    module = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(40)), Twice())
    (program,) = captured(module, [torch.ones(2, 4)]).programs
    changes = Changes()
    with passes.watched(changes):
        passes.run(program)
    longest = max(changes.of_stamps.values(), key=lambda each: len(each.text))
    assert len(longest.text) <= LONGEST_CHANGE + 20
