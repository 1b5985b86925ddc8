"""Notes and signs of life between processes, here threads that share a store."""

import datetime
import time

import pytest
from torch import distributed

from abele.collectives.meeting import ENDED, STOPPED, Board
from abele.errors import DisagreementError, RankLostError
from helpers import instances


def test_texts_come_by_rank_and_topics_can_be_used_again(boards):
    made = boards(3)
    for turn in "ab":
        result = instances.together(
            made, lambda board, turn=turn: board.gather("x", f"{turn}{board.rank}")
        )
        assert result == [[f"{turn}0", f"{turn}1", f"{turn}2"]] * 3


def test_facts_that_differ_are_named_with_both_values(boards):
    made = boards(3)

    def facts(board):
        torch = "2.12.0" if board.rank == 2 else "2.13.0"
        with pytest.raises(DisagreementError) as caught:
            board.agree(
                "versions", {"torch": torch, "abele": "1"} | ({"x": "y"} if board.rank == 1 else {})
            )
        return str(caught.value)

    first, *others = instances.together(made, facts)
    assert others == [first, first]
    assert "about versions: x is absent on process 0 and y on process 1; torch is 2.13.0" in first
    assert "on process 0 and 2.12.0 on process 2. Give" in first


def test_equal_facts_are_agreed(boards):
    assert instances.together(boards(2), lambda board: board.agree("x", {"a": "1"})) == [None, None]


def test_a_process_that_does_not_come_is_named(boards):
    (alone,) = boards(2, timeout_s=1.5, without=[1])
    with pytest.raises(RankLostError, match="process 1 did not come within"):
        alone.gather("x", "", arriving=True)


@pytest.mark.parametrize("words", [f"{ENDED} after 3 exchanges", f"{STOPPED}: no memory"])
def test_last_words_are_passed_on(boards, words):
    first, second = boards(2)
    second.close(words)
    assert first.lost(30.0) == f"process 1 has {words}"
    with pytest.raises(RankLostError, match=f"waited at 'x', but process 1 has {words}"):
        first.gather("x", "")


def test_who_ended_comes_before_who_stopped_because_of_it(boards):
    first, second, third = boards(3)
    second.close(f"{STOPPED}: process 2 is gone")
    third.close(f"{ENDED} early")
    assert first.lost(30.0) == f"process 2 has {ENDED} early"


def test_a_process_without_signs_of_life_is_lost_and_others_are_not(boards):
    first, second, third = boards(3, timeout_s=2.0)  # ten signs a second
    assert first.lost(3.0) is None
    second._closing.set()  # as if it had been killed: no more signs, no last words
    second._thread.join()
    result = None
    while result is None:
        time.sleep(0.01)
        result = first.lost(3.0)
    assert result.startswith("process 1 died or hangs: no sign of it for ")
    assert "last seen at work" in result
    assert first.lost(3.0, ranks=[2]) is None
    assert third.lost(30.0) is None


def test_who_has_left_a_topic_does_not_come_to_it(boards):
    first, second = boards(2)
    second.tell("left/model 1", "has given up its model")
    assert first.lost(30.0, "model 1") == "process 1 has given up its model"
    assert first.lost(30.0, "model 2") is None
    assert first.notes("left/model 1") == {1: "has given up its model"}


def test_processes_that_wait_at_different_places_do_not_wait_for_ever(boards):
    def meet(board):
        board.gather("a place that all have passed", "")
        with pytest.raises(RankLostError) as told:
            board.gather("here" if board.rank else "there", "")
        return str(told.value)

    first, second = instances.together(boards(2, timeout_s=60.0), meet)
    assert "waited at 'there', but process 1 waits at 'here' instead; all processes have" in first
    assert "waited at 'here', but process 0 waits at 'there' instead" in second


def test_without_the_store_its_keeper_is_named():
    port = instances.free_port()
    wait = datetime.timedelta(seconds=60)
    stores = [
        distributed.TCPStore("127.0.0.1", port, is_master=m, timeout=wait, wait_for_workers=False)
        for m in (True, False)
    ]
    board = Board(stores.pop(), 1, 2, 2.0, lambda: "", "process 0")
    stores.pop()  # the server ends with its last reference
    with pytest.raises(RankLostError, match="lost the connection to process 0, which has ended"):
        board.notes("x")
    board.close(ENDED)
