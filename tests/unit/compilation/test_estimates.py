"""How long compiling may take: noted, read again, and said without pretending to be exact."""

import json
import time

import pytest

from abele import StepConfig, build
from abele.compilation import compiling, estimates
from helpers.fakes import Keeping
from helpers.models import MODELS
from helpers.runs import captured, rule_for

MACHINE = {"isa": "avx2"}


@pytest.fixture
def program():
    module = MODELS["dense"].fresh()
    (made,) = captured(module, MODELS["dense"].batch(), StepConfig(), rule_for(module)).programs
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "cache_folder", lambda: tmp_path / "times")
    return tmp_path / "times"


def expected(program, lowering="odd", machine=MACHINE):
    return estimates.expected_s([program], {"step": [lowering]}, machine)


def compiled(program, lowering="odd"):
    with estimates.noted(program, lowering, MACHINE):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass


def keep(folder, **compiles):
    """Notes as if these compiles had taken place: (nodes, seconds) by lowering."""
    folder.mkdir(exist_ok=True)
    estimates._file(MACHINE).write_text(json.dumps(compiles))


def test_nobody_knows_before_there_was_a_compile(program):
    assert expected(program) is None


def rated(count):
    """Seconds of so many nodes where nothing has been compiled yet."""
    return 0.7 + 0.0003 * count


def test_known_lowerings_begin_with_fitted_rates(program):
    count = estimates.nodes(program)
    assert expected(program, "emitted") == pytest.approx(rated(count))


def test_a_compile_is_noted_in_processor_time(program):
    compiled(program)
    assert 0.02 <= expected(program) < 2.0
    assert expected(program, machine={"isa": "avx512"}) is None


def test_one_that_fails_is_not_noted(program):
    with pytest.raises(ZeroDivisionError), estimates.noted(program, "odd", MACHINE):
        raise ZeroDivisionError
    assert expected(program) is None


def test_the_latest_of_the_same_size_count(program, folder):
    count = estimates.nodes(program)
    keep(folder, odd=[[count, 90.0], [count, 5.0], [count, 4.0], [10 * count, 1.0], [count, 6.0]])
    assert expected(program) == pytest.approx(5.0)


@pytest.mark.parametrize(("factor", "ratio", "seconds"), [(1, 0.2, 0.2), (3, 0.2, 1), (3, 4, 4)])
def test_other_programs_may_make_one_dear_but_not_cheap(program, folder, factor, ratio, seconds):
    # The compiler takes a third of the time for each node of an LSTM that it takes for a GPT's.
    count = estimates.nodes(program)
    keep(folder, emitted=[[factor * count, ratio * rated(factor * count)]])
    assert expected(program, "emitted") == pytest.approx(seconds * rated(count))


def test_only_the_latest_are_kept(program):
    for _ in range(30):
        with estimates.noted(program, "odd", MACHINE):
            pass
    assert len(json.loads(estimates._file(MACHINE).read_text())["odd"]) == 24


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"odd": 3}', '{"odd": [["a", 1]]}'])
def test_a_damaged_file_is_as_none(program, folder, text):
    folder.mkdir()
    estimates._file(MACHINE).write_text(text)
    assert expected(program) is None
    compiled(program)
    assert expected(program) is not None


def test_what_cannot_be_noted_is_no_error(program, folder):
    folder.write_text("no folder")
    compiled(program)
    assert expected(program) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (8.7, "9 s"), (33.0, "35 s"), (89.0, "90 s"), (100.0, "2 min"), (500, "8 min")],
)
def test_words_do_not_pretend_to_be_exact(seconds, words):
    assert estimates.about(seconds) == f"about {words}"


class Prepared(Keeping):
    """Compiles; the first time it takes ``first_s`` for what is made once per machine."""

    def __init__(self, first_s):
        super().__init__()
        self.first_s = first_s
        self.lowerings[0].compiles = True

    def setup_seconds_left(self, needed=None):
        return self.first_s


def test_what_is_made_once_per_machine_is_no_part_of_a_program(program, folder, monkeypatch):
    target, stages = Prepared(20.0), []
    noted = estimates.noted
    monkeypatch.setattr(target, "prepare", lambda needed: stages.append("once"))
    monkeypatch.setattr(estimates, "noted", lambda *each: stages.append("noted") or noted(*each))
    build([program], StepConfig(), target=target)
    assert stages == ["once", "noted"]
    assert len(list(folder.glob("*.json"))) == 1


def test_what_is_made_once_per_machine_is_expected(program, monkeypatch):
    monkeypatch.setattr(estimates, "expected_s", lambda *_: 1.0)
    lowered = compiling.Lowered(
        programs=[program],
        parts={"lowerings": {"step": "kept code"}, "target": {}},
        target=Prepared(20.0),
        config=StepConfig(),
        cache=None,
        stored=None,
    )
    assert lowered.expected_s == 21.0
