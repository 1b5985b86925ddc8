"""``abele prepare``: what it makes, shows and refuses."""

import pytest

from abele import __main__
from abele.compilation import prepare
from abele.errors import CompilerError
from helpers.fakes import Keeping


class Unprepared(Keeping):
    """Has four seconds of work, until ``prepare`` has done it."""

    name, left_s, problem = "unprepared", 4.0, None

    def setup_seconds_left(self, needed=None):
        return self.left_s

    def prepare(self, needed=None):
        if self.problem is not None:
            raise CompilerError(self.problem)
        self.left_s = 0.0


@pytest.fixture
def target(monkeypatch):
    made = Unprepared()
    monkeypatch.setattr(prepare, "get_target", lambda name: made)
    return made


def test_it_prepares_once(target, capsys):
    assert __main__.main(["prepare"]) == 0
    assert "Target 'unprepared' is prepared; that took 0 s.\n" in capsys.readouterr().out
    assert __main__.main(["prepare"]) == 0
    assert "nothing had to be compiled" in capsys.readouterr().out


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
