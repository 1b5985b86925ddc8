"""Where processes meet: who can reach it, and whose notes count."""

import datetime
import socket
from pathlib import Path

import pytest
from torch import distributed

from abele.collectives import meeting
from abele.errors import PlaceError, RankLostError
from helpers import instances

LISTENING, LOOPBACK, EVERYWHERE = "0A", "0100007F", "00000000"


def listening(port):
    """Addresses that somebody listens at, as /proc/net writes them."""
    results = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                results.add(local.rpartition(":")[0])
    return results


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_store_for_this_host_listens_on_the_loopback_only(address):
    store = meeting.keep_store(address, 0)
    assert listening(store.port) == {LOOPBACK}
    store.set("a", "b")
    other = distributed.TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    assert other.get("a") == b"b"


def test_an_address_of_another_network_means_every_interface():
    """Behind a port that is forwarded, say; 192.0.2.1 is nobody's."""
    assert listening(meeting.keep_store("192.0.2.1", 0).port) == {EVERYWHERE}


def test_a_name_that_only_this_machine_takes_for_the_loopback_means_every_interface(monkeypatch):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    assert listening(meeting.keep_store("this-machine", 0).port) == {EVERYWHERE}


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PlaceError, match=f"cannot open localhost:{port}.*in use.*MASTER_PORT"):
            meeting.meet(of(0, port, address="localhost"))


def of(rank, port, secret="", address="127.0.0.1", timeout_s=20.0):
    return meeting.Place(
        rank=rank,
        size=2,
        address=address,
        port=port,
        local_rank=rank,
        hosts_store=rank == 0,
        attempt="0",
        timeout_s=timeout_s,
        secret=secret,
    )


def test_processes_with_one_secret_meet_and_others_do_not():
    port = instances.free_port()
    first, second = (meeting.meet(of(rank, port, "one")) for rank in range(2))
    first.set("a", "b")
    assert second.get("a") == b"b"
    assert not meeting.meet(of(1, port, "another")).check(["a"])
    assert not meeting.meet(of(1, port)).check(["a"])


def test_the_secret_is_not_shown_and_comes_from_the_environment(monkeypatch):
    for name, value in {"MASTER_ADDR": "x", "MASTER_PORT": "1", meeting.SECRET: "hush"}.items():
        monkeypatch.setenv(name, value)
    result = meeting.Place.of_environment(0, 2)
    assert result.secret == "hush"
    assert "hush" not in repr(result)


def test_who_waits_for_nobody_says_where():
    port = instances.free_port()
    with pytest.raises(RankLostError, match=f"process 0, which does not answer at 127.*:{port}"):
        meeting.meet(of(1, port, timeout_s=0.2))


def test_the_store_can_be_opened_again_at_once():
    port = instances.free_port()
    wait = datetime.timedelta(seconds=5)
    for _ in range(2):
        store = meeting.keep_store("127.0.0.1", port, wait)
        store.set("a", "b")
        del store


def test_an_address_that_does_not_resolve_is_named(monkeypatch):
    def unknown(*args, **named):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    named = "MASTER_ADDR=nowhere is no host that process 1 of 2 knows: Name or service not known"
    with pytest.raises(PlaceError, match=named):
        meeting.meet(of(1, 1234, address="nowhere", timeout_s=0.2))
