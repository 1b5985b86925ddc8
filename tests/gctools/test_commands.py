"""The three commands, on machines of files; once in processes of their own, on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gcipuinfo
from gctools import info, inventory, monitor
from gctools._commands import elapsed
from helpers.machines import Machine, Nvml

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def busy(machine, at):
    """Two sockets and a GPU, a process on both kinds and one of another container."""
    machine.add_process(321, command="/usr/bin/python3\0train.py\0--lr\x1b[31m", cpus="0-1")
    gpu = {"target": "cuda", "device": "cuda:0", "since": 1e9, "uuid": "GPU-0"}
    cpu = {"target": "cpu", "device": "cpu", "since": time.time() - 60}
    machine.add_record(321, held=[cpu, gpu])
    machine.add_record(9, namespace="pid:[7]", host="pod-1")
    at(machine, Nvml())
    return machine


def titles(line):
    return [part.strip() for part in line.strip("|").split("|")]


def test_a_misspelt_option_is_told_what_was_meant(capsys):
    with pytest.raises(SystemExit):
        monitor.main(["--jsno"])
    assert capsys.readouterr().err.endswith("Did you mean --json for --jsno?\n")


def test_monitor(busy, capsys):
    assert monitor.main([]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    devices, processes = out.rstrip("\n").split("\n\n")
    lines = devices.splitlines()
    assert "partition node7 [active] has 2 CPU sockets and 1 GPU" in lines[0]
    assert titles(lines[7])[:6] == ["2", "GPU", "0", "NVIDIA Test 100", "16896", "N/A"]
    assert lines[6] == lines[3] == lines[1]  # a rule between kinds
    lines = processes.splitlines()
    assert lines[0] == "Attached processes in partition node7"
    assert titles(lines[2])[-3:] == ["Clock (MHz)", "Board temp (C)", "Board power (W)"]
    rows = [titles(line) for line in lines[3:] if line.startswith("|")]
    assert rows[0][0] == "9@pod-1"
    assert rows[1][:2] == ["321", "python3 train.py --lr [31m"]
    assert rows[1][4:] == ["0", "CPU", "cpu", "2000", "N/A", "N/A"]
    assert rows[-1][4:] == ["2", "GPU", "cuda", "1980", "41", "312"]
    for part in (devices, processes):
        assert len({len(line) for line in part.splitlines() if line[0] in "+|"}) == 1


@pytest.mark.parametrize("width", [132, 80, 44])
def test_monitor_on_narrow_terminals(busy, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert monitor.main(["--all-partitions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if line[:1] in "+|") <= width


def test_monitor_without_processes(machine, at, capsys):
    at(machine)
    assert monitor.main(["--no-card-info", "-v"]) == 0
    captured = capsys.readouterr()
    assert "No attached processes in partition node7" in captured.out
    assert "Usable" not in captured.out


def test_monitor_where_nothing_can_be_seen(tmp_path, at, capsys):
    at(Machine(tmp_path), Nvml(broken=True))
    assert monitor.main(["-v"]) == 0
    captured = capsys.readouterr()
    assert "has 0 CPU sockets and 0 GPUs" in captured.out
    assert captured.err == "gc-monitor: No GPU is listed: Driver Not Loaded.\n"


def test_monitor_as_json(busy, capsys, monkeypatch):
    monkeypatch.setattr("gctools._devices.utilisation_between", lambda before, after: 12.5)
    monitor.main(["--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [device["kind"] for device in printed["devices"]] == ["CPU", "CPU", "GPU"]
    assert printed["devices"][2]["power_w"] == 312.5
    assert printed["devices"][0]["power_w"] is None
    assert printed["devices"][0]["utilisation"] == 12.5  # as gc-inventory
    by_process = {(p["pid"], p["target"]): p for p in printed["processes"]}
    assert by_process[321, "cuda"]["devices"] == [2]
    assert by_process[9, "cpu"]["elsewhere"] == "pod-1"


def test_info_lists_devices(busy, capsys):
    assert info.main(["-l", "--all-partitions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "Partition: node7 [active]"
    assert lines[3].startswith("-+- Id: [0], target: [CPU], host: [node7], CPU#: [0]")
    assert lines[5].endswith("cores: [16896], PCI: [00000000:3B:00.0]")


def test_info_of_a_device(busy, capsys):
    assert info.main(["-d", "2", "--device-info"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "Device Info:"
    results = dict(line.strip().split(": ", 1) for line in rest)
    assert results["clock"] == "1980MHz"
    assert results["ipu architecture"] == "sm_90"
    assert results["user process id"] == "321"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--ipu-count"], "3"),
        (["--ipu-arch", "-d", "2"], "sm_90"),
        (["--tile-clock-speed"], "2000MHz"),
        (["-d", "1", "--tile-clock-speed"], "2100MHz"),
    ],
)
def test_info_answers(busy, capsys, arguments, printed):
    assert info.main(arguments) == 0
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tile-status"], "unrecognized arguments: --tile-status"),
        (["-d", "7", "-i"], "device 7 does not exist. There are 3, counted from 0; gc-info -l"),
        (["-d", "-1", "--ipu-arch"], "device -1 does not exist"),
        (["-d", "one"], "invalid int value"),
        ([], "usage: gc-info"),
    ],
)
def test_info_that_cannot_be_had(busy, capsys, arguments, said):
    try:
        status = info.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_inventory(busy, capsys):
    assert inventory.main(["-j"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert len(devices) == 3
    assert {type(value) for device in devices for value in device.values()} == {str}
    assert all(device["remote buffers"] == "1" for device in devices)
    assert devices[2]["ipu power"] == "312.5W"
    assert "user process id" not in devices[1]
    assert inventory.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Device 0:"
    assert "  ipu utilisation: 37.00%" in lines
    assert "\x1b" not in "".join(lines)


def test_gcipuinfo(busy):
    result = gcipuinfo.gcipuinfo()
    assert [device["target"] for device in result.getDevices()] == ["CPU", "CPU", "GPU"]
    assert result.getNamedAttributeForAll(gcipuinfo.IpuPower) == ["N/A", "N/A", "312.5W"]
    assert result.getNamedAttributeForDevice(2, "nothing") == "N/A"
    assert json.loads(result.getDevicesAsJSON()) == {"devices": result.getDevices()}
    with pytest.raises(IndexError, match="Device 3 does not exist; this machine has 3"):
        result.getNamedAttributeForDevice(3, "id")


def test_scripts_find_themselves_on_a_device_that_others_share(busy):
    busy.add_process(os.getpid())
    busy.add_record(os.getpid())
    assert gcipuinfo.gcipuinfo().getDevices()[0]["user process id"] == str(os.getpid())


def run(module, *arguments, **settings):
    command = [sys.executable, "-X", "importtime", "-m", f"gctools.{module}", *arguments]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    env.pop("COLUMNS", None)
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=False, **settings
    )


@pytest.mark.parametrize(
    ("module", "arguments"), [("monitor", []), ("info", ["-l"]), ("inventory", ["-j"])]
)
def test_on_this_machine_without_torch(module, arguments):
    done = run(module, *arguments)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gctools._devices" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy", "abele")}
    assert done.stdout


def test_a_reader_that_leaves_is_no_error():
    script = f"{sys.executable} -m gctools.inventory | head -n 1"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Device 0")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "N/A"), (9.9, "9s"), (241, "4m1s"), (12_000, "3h20m"), (190_800, "2d5h")],
)
def test_elapsed(seconds, text):
    assert elapsed(seconds) == text


def test_version(capsys):
    from abele.version import __version__

    with pytest.raises(SystemExit, match="0"):
        info.main(["--version"])
    assert capsys.readouterr().out == f"gc-info {__version__}\n"
