"""``abele prepare``: what it makes, shows and refuses."""

import threading

import pytest

from abele import __main__
from abele.compile import prepare
from abele.errors import CompilerError
from helpers.fakes import Keeping


class Unprepared(Keeping):
    """Has four seconds of work, until ``prepare`` has done it."""

    name, left_s, problem = "unprepared", 4.0, None

    def unprepared_s(self, needed=None):
        return self.left_s

    def prepare(self, needed=None):
        if self.problem is not None:
            raise CompilerError(self.problem)
        self.left_s = 1.0
        threading.Event().wait(3 * prepare._LOOK_EVERY_S)
        self.left_s = 0.0


@pytest.fixture
def target(monkeypatch):
    made = Unprepared()
    monkeypatch.setattr(prepare, "get_target", lambda name: made)
    return made


def test_it_prepares_once(target, capsys):
    assert __main__.main(["prepare"]) == 0
    assert capsys.readouterr().out == "Target 'unprepared' is prepared; that took 1 s.\n"
    assert __main__.main(["prepare"]) == 0
    assert "nothing had to be compiled" in capsys.readouterr().out


def test_a_bar_shows_how_far_it_is(target, monkeypatch):
    shown = []

    class Bar(prepare.tqdm):
        def refresh(self, *arguments, **options):
            shown.append(self.n)

    monkeypatch.setattr(prepare, "tqdm", Bar)
    prepare._with_bar(target)
    assert 3.0 in shown


@pytest.mark.parametrize("left_s", [4.0, 0.0])
def test_a_compiler_that_fails_is_an_error(target, left_s, capsys):
    target.problem, target.left_s = "g++ failed", left_s
    assert __main__.main(["prepare"]) == 1
    assert capsys.readouterr().err == "abele prepare: g++ failed\n"


def test_where_there_is_no_compiler_it_says_so(target, monkeypatch, capsys):
    monkeypatch.setattr(target, "cannot_compile", lambda *_: "no C++ compiler was found")
    assert __main__.main(["prepare"]) == 1
    expected = "abele prepare: Target 'unprepared' cannot be prepared: no C++ compiler was found\n"
    assert capsys.readouterr().err == expected


def test_targets_that_do_not_exist_are_named(capsys):
    assert __main__.main(["prepare", "ipu"]) == 1
    assert "Target 'ipu' does not exist. Known targets are" in capsys.readouterr().err
