"""Files of processes: which are believed, which are deleted, and what is told of their writers."""

import os

import pytest

from gctools._devices import list_devices
from gctools._processes import list_holds, parse_list
from helpers.machines import HOST, Nvml


def holds(machine, nvml=None):
    system = machine.system(nvml)
    return list_holds(system, list_devices(system)), system.notes


def test_a_process_and_the_sockets_that_it_may_run_on(machine):
    machine.add_process(321, command="python\0train.py\0", cpus="0-1,4")
    machine.add_record(321)
    ((hold,), notes) = holds(machine)
    assert (hold.pid, hold.command, hold.target) == (321, "python train.py", "cpu")
    assert hold.devices == (0,)
    assert 241 < hold.seconds < 300
    assert hold.elsewhere is None
    assert notes == []


def test_models_of_one_process_on_one_target_are_one_line(machine):
    machine.add_process(321)
    entries = [{"target": t, "device": "cpu", "since": s} for t, s in (("cpu", 9), ("cpu", 5))]
    machine.add_record(321, held=[*entries, {"target": "reference", "device": "cpu", "since": 7}])
    result, _ = holds(machine)
    assert [(hold.target, hold.devices) for hold in result] == [
        ("cpu", (0, 1)),
        ("reference", (0, 1)),
    ]
    assert result[0].seconds > result[1].seconds


def test_a_gpu_is_found_by_its_own_identifier(machine):
    machine.add_process(321)
    entry = {"target": "cuda", "device": "cuda:0", "since": 1, "uuid": "GPU-1"}
    machine.add_record(321, held=[entry, {**entry, "uuid": "GPU-77"}])
    result, _ = holds(machine, Nvml(count=2))
    assert [hold.devices for hold in result] == [(3,), ()]


def test_a_process_under_qemu_is_alive_though_it_saw_a_later_start(machine):
    machine.add_process(321, started=4987)
    machine.add_record(321, started=5000)
    ((hold,), _) = holds(machine)
    assert hold.pid == 321


@pytest.mark.parametrize(
    "change",
    [
        {"process": None},  # killed
        {"process": {"started": 5001}},  # its PID has been given to another
        {"process": {"state": "Z"}},
        {"record": {"boot": "another boot"}},  # the machine was restarted
    ],
)
def test_files_of_dead_processes_are_deleted(machine, change):
    process = change.get("process", {})
    if process is not None:
        machine.add_process(321, **process)
    path = machine.add_record(321, **change.get("record", {}))
    assert holds(machine) == ([], [])
    assert not path.exists()


def test_a_file_for_a_process_of_another_user_is_a_lie(machine, monkeypatch):
    machine.add_process(321)
    machine.add_record(321)
    monkeypatch.setattr("gctools._processes._owner", lambda folder: os.getuid() + 1)
    assert holds(machine) == ([], [])


def test_hidden_processes_of_others_are_told_from_dead_ones(machine):
    (machine.proc / "1/stat").unlink()
    machine.add_record(os.getpid())
    dead = machine.add_record(2**22 + 1)
    ((hold,), _) = holds(machine)
    assert (hold.pid, hold.command) == (os.getpid(), "python written.py")
    assert not dead.exists()


@pytest.mark.parametrize(
    "record",
    [
        {"namespace": "pid:[7]"},
        {"boot": "another boot", "host": "node8"},
        {"boot": None, "host": "node8"},
    ],
)
def test_processes_of_other_containers_are_listed_apart_and_kept(machine, record):
    path = machine.add_record(321, **record)
    ((hold,), _) = holds(machine)
    assert hold.elsewhere == record.get("host", HOST)
    assert hold.devices == (0, 1)
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", '{"format": 1}', "\xff", "9" * 5000, '{"format": 1, "boot": 3}'],
)
def test_files_that_are_not_ours_are_left_alone_and_noted(machine, text):
    path = machine.registry / "1.json"
    path.write_text(text, encoding="latin-1")
    result, notes = holds(machine)
    assert result == []
    assert notes == [f"{path} is not a file of ours and is not listed."]
    assert path.exists()


def test_pipes_links_and_endless_files_do_not_stop_the_tool(machine):
    os.mkfifo(machine.registry / "1.json")
    os.symlink("/dev/zero", machine.registry / "2.json")
    (machine.registry / "3.json").write_bytes(b" " * 100_000)
    (machine.registry / "4.json").mkdir()
    result, notes = holds(machine)
    assert result == []
    assert len(notes) == 4


def test_a_later_version_is_noted(machine):
    machine.add_record(321, format=2)
    result, (note,) = holds(machine)
    assert result == []
    assert "of another version" in note


def test_a_folder_that_cannot_be_read_is_noted(machine, monkeypatch):
    from gctools import _processes

    def refuse(self):
        raise PermissionError

    monkeypatch.setattr(_processes.Path, "iterdir", refuse)
    result, (note,) = holds(machine)
    assert result == []
    assert note.endswith("is not for this user: processes of its owner are not listed.")


def test_lists_of_processors():
    assert parse_list("0-2,7") == {0, 1, 2, 7}
    assert parse_list("") == set()
