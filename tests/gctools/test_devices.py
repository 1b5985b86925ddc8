"""Sockets from the kernel's files, GPUs from the driver; what is not told is None, not a guess."""

import pytest

from gctools import _devices
from gctools._devices import list_devices
from helpers.machines import Machine, Nvml, put


def test_sockets_of_a_machine(machine):
    first, second = list_devices(machine.system())
    assert (first.id, first.kind, first.index, first.name) == (0, "CPU", 0, "Test 9000")
    assert (first.cores, first.threads, first.usable) == (2, 4, 4)
    assert first.cpus == {0, 1, 4, 5}
    assert second.cpus == {2, 3, 6, 7}
    assert (first.clock_mhz, second.clock_mhz, first.clock_max_mhz) == (2000, 2100, 3500)
    assert (first.memory, first.memory_free) == (8 * 2**30, 2 * 2**30)
    assert (first.numa_node, second.numa_node) == (0, 1)
    assert (first.temperature_c, first.power_w, first.serial, first.utilisation) == (None,) * 4


def test_usable_threads_are_those_of_this_process(machine, monkeypatch):
    monkeypatch.setattr("gctools._devices._allowed", lambda: frozenset({1, 2, 3}))
    assert [device.usable for device in list_devices(machine.system())] == [1, 2]


def test_a_machine_without_topology_is_read_from_cpuinfo(tmp_path):
    machine = Machine(tmp_path)
    put(machine.proc, "cpuinfo", "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\nBogoMIPS\t: 50")
    put(machine.sys, "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", 1_800_000)
    (device,) = list_devices(machine.system())
    assert (device.threads, device.cores, device.name, device.clock_mhz) == (2, None, None, 1800)


def test_a_clock_that_the_kernel_does_not_know_is_read_elsewhere(tmp_path):
    machine = Machine(tmp_path)
    put(machine.proc, "cpuinfo", "processor\t: 0\ncpu MHz\t\t: Unknown")
    put(machine.sys, "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", 1_800_000)
    (device,) = list_devices(machine.system())
    assert device.clock_mhz == 1800


def test_a_container_that_shows_nothing_has_no_device(tmp_path):
    assert list_devices(Machine(tmp_path).system()) == []


def test_temperature_by_the_label_of_the_socket(machine):
    for chip, position in ((0, 1), (1, 0)):  # in another order than the sockets
        base = f"class/hwmon/hwmon{chip}"
        put(machine.sys, f"{base}/name", "coretemp")
        put(machine.sys, f"{base}/temp1_label", f"Package id {position}")
        put(machine.sys, f"{base}/temp1_input", 40_000 + 10_000 * position)
    assert [d.temperature_c for d in list_devices(machine.system())] == [40, 50]


def test_temperature_of_zones_that_are_not_one_per_socket_is_not_guessed(machine):
    put(machine.sys, "class/thermal/thermal_zone0/type", "x86_pkg_temp")
    put(machine.sys, "class/thermal/thermal_zone0/temp", 33_000)
    assert [d.temperature_c for d in list_devices(machine.system())] == [None, None]


def counters(energy, wraps=0.0, busy=0, total=0):
    return _devices.Counters(energy, wraps, busy, total)


@pytest.mark.parametrize(
    ("before", "after", "watts"),
    [
        (counters(1e6), counters(3e6), 4.0),
        (counters(9e6, 1e7), counters(1e6, 1e7), 4.0),  # starts again at 10 J
        (counters(None), counters(3e6), None),
        (counters(3e6), counters(1e6), None),
    ],
)
def test_power_between_two_readings(before, after, watts):
    assert _devices.power_between(before, after, 0.5) == watts


def test_power_needs_a_counter_that_may_be_read(machine):
    base = "class/powercap/intel-rapl:0"
    put(machine.sys, f"{base}/name", "package-1")
    put(machine.sys, f"{base}/energy_uj", 5)
    assert [device.power_w for device in list_devices(machine.system())] == [None, 0.0]


def test_utilisation_counts_the_threads_of_the_socket(machine):
    path = put(
        machine.proc, "stat", "cpu 1 1 1 1 1 1 1 1 0 0\ncpu0 10 0 0 90 0 0 0 0 7 7\ncpu2 9 9"
    )
    cpus = frozenset({0, 1})
    before = _devices.counters(machine.system(), 0, cpus)
    path.write_text("cpu0 40 0 0 140 20 0 0 0 7 7\ncpu1 0 0 0 100 0 0 0 0 0 0\n")
    assert (
        _devices.utilisation_between(before, _devices.counters(machine.system(), 0, cpus)) == 15.0
    )


def test_gpus_come_after_sockets(machine, nvml):
    device = list_devices(machine.system(nvml))[2]
    assert (device.id, device.kind, device.index, device.name) == (2, "GPU", 0, "NVIDIA Test 100")
    assert (device.architecture, device.uuid, device.bus) == ("sm_90", "GPU-0", "00000000:3B:00.0")
    assert (device.clock_mhz, device.temperature_c, device.power_w) == (1980, 41, 312.5)
    assert (device.utilisation, device.driver, device.cores) == (37, "555.1", 16896)
    assert nvml.open == 0


def test_what_a_gpu_does_not_answer_is_not_known(machine):
    silent = ("PowerUsage", "Serial", "MemoryInfo", "UtilizationRates", "PciInfo", "NumaNodeId")
    device = list_devices(machine.system(Nvml(silent=silent)))[2]
    assert (device.power_w, device.serial, device.memory, device.bus) == (None,) * 4
    assert device.temperature_c == 41


def test_a_gpu_that_is_lost_keeps_its_number(machine):
    system = machine.system(Nvml(silent=["HandleByIndex"]))
    device = list_devices(system)[2]
    assert (device.id, device.name, device.driver) == (2, None, "555.1")
    assert system.notes == ["GPU 0 does not answer."]


def test_without_a_driver_there_is_no_gpu_and_a_note_says_why(machine):
    system = machine.system(Nvml(broken=True))
    assert {device.kind for device in list_devices(system)} == {"CPU"}
    assert system.notes == ["No GPU is listed: Driver Not Loaded."]
