"""How lines of instances are put together, without processes."""

import io

import pytest

from popdist._run import output
from popdist._run.output import Relay, Screen

MARK = "\x1dsecret\x1d"


class Watched:
    """A relay that is fed by hand."""

    def __init__(self, count=2, **settings):
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.screen = Screen(streams=(self.out, self.err), **settings)
        self.relay = Relay(count, self.screen, MARK)

    def feed(self, rank, data, stream=0):
        lines = list(self.relay._lines.values())
        lines[2 * rank + stream].feed(data)

    def finish(self):
        self.relay.finish()
        return self.out.getvalue(), self.err.getvalue()


@pytest.fixture
def watched():
    made = []

    def make(**settings):
        made.append(Watched(**settings))
        return made[-1]

    yield make
    for one in made:
        one.relay.finish()


def test_lines_are_whole_and_tagged(watched):
    run = watched()
    run.feed(0, b"half a li")
    run.feed(1, b"other\n\nempty above\r\n")
    run.feed(0, b"ne\nand no end")
    run.feed(0, b"\xff\xfe\n", stream=1)
    out, err = run.finish()
    assert out.splitlines() == [
        b"[1,1]<stdout>:other",
        b"[1,1]<stdout>:",
        b"[1,1]<stdout>:empty above",
        b"[1,0]<stdout>:half a line",
        b"[1,0]<stdout>:and no end",
    ]
    assert err == b"[1,0]<stderr>:\xff\xfe\n"
    assert [text for _, text in run.relay.tails[0]] == [b"half a line", b"\xff\xfe", b"and no end"]


def test_tags_and_instances_may_be_left_out(watched):
    run = watched(tagged=False, only=1)
    run.feed(0, b"zero\n")
    run.feed(1, b"one\n")
    assert run.finish() == (b"one\n", b"")
    assert list(run.relay.tails[0]) == [(0, b"zero")]


BAR = b"\r 10%|#  |\r 20%|## |"
MESSAGE = b"\r          \rloss 0.5\n"
END = b"\r 90%|###|\r100%|###|\n"


def test_progress_bars_are_those_of_instance_0(watched):
    run = watched()
    for rank in (0, 1):
        for piece in (BAR, MESSAGE, BAR, END, b"after\n"):
            run.feed(rank, piece, stream=1)
    _, err = run.finish()
    assert err.splitlines() == [
        b"[1,0]<stderr>:loss 0.5",
        b"[1,0]<stderr>:100%|###|",
        b"[1,0]<stderr>:after",
        b"[1,1]<stderr>:loss 0.5",
        b"[1,1]<stderr>:after",
    ]


def test_a_long_bar_is_shown_now_and_then(watched, monkeypatch):
    run = watched()
    now = output.time.monotonic()
    for seconds in (1, 29, 31, 45, 62):
        monkeypatch.setattr(output.time, "monotonic", lambda t=seconds: now + t)
        run.feed(0, f"\r at {seconds} s".encode(), stream=1)
    assert run.err.getvalue().splitlines() == [b"[1,0]<stderr>: at 31 s", b"[1,0]<stderr>: at 62 s"]


def test_endings_are_taken_out(watched):
    run = watched()
    run.feed(1, f"no end{MARK}killed 9 12.5{MARK}\nlate\n".encode(), stream=1)
    run.feed(0, f"{MARK}exited 3 11.5{MARK}\n".encode(), stream=1)
    assert run.finish() == (b"", b"[1,1]<stderr>:no end\n[1,1]<stderr>:late\n")
    killed, exited = run.relay.endings
    assert (killed.rank, killed.status, killed.failed, killed.seconds) == (1, 137, True, 12.5)
    assert (exited.rank, exited.status, exited.failed) == (0, 3, True)
    assert not output.Ending(0, "exited", 0, 1.0).failed


def test_pipes_are_read_to_their_end(watched):
    run = watched()
    with open(run.relay.path(1, 0), "wb", buffering=0) as pipe:
        for number in range(1000):
            pipe.write(f"{number} {'x' * 200}\n".encode())
        # Whoever still holds the pipe does not keep us from finishing.
        lines = run.finish()[0].splitlines()
    assert lines == [f"[1,1]<stdout>:{n} {'x' * 200}".encode() for n in range(1000)]


def test_who_reads_no_more_is_noticed_once(watched):
    told = []
    run = watched(broken=lambda: told.append(1))

    def refuse(_):
        raise BrokenPipeError

    run.out.write = refuse
    run.feed(0, b"one\ntwo\n")
    assert told == [1]
    assert run.screen.broken
