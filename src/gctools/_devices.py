"""Device discovery: processor sockets read from the kernel, and GPUs read from their driver."""

import os
import platform
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gctools.system import System

_CORE_SENSORS = ("k10temp", "zenpower")
_SOCKET_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")
_SAMPLED = 4  # processors whose clock is asked one by one; some kernels take milliseconds for each


class Counters(NamedTuple):
    """Energy and load counters of a processor socket.

    Attributes:
        energy: microjoules; None without a counter, or without permission to read it.
        wraps: microjoules at which the counter wraps around.
        busy: busy time of all logical processors, in the kernel's units.
        total: total time in these units.
    """

    energy: float | None
    wraps: float
    busy: int
    total: int


def cpus_by_socket(system: System) -> dict[int, frozenset[int]]:
    """Return the logical processors of each socket by its number; empty if unknown."""
    by_socket: dict[int, set[int]] = {}
    for path in _processors(system):
        package = system.number(path / "topology/physical_package_id")
        if package is not None:
            by_socket.setdefault(int(package), set()).add(int(path.name[3:]))
    if not by_socket:
        for entry in _cpuinfo(system):
            number = int(entry.get("physical id", 0))
            by_socket.setdefault(number, set()).add(int(entry["processor"]))
    # Some virtual and Arm machines number their only socket -1.
    return {number: frozenset(by_socket[number]) for number in sorted(by_socket)}


def describe(system: System, number: int, all_sockets: dict[int, frozenset[int]]) -> dict[str, Any]:
    """Return the fields of a ``Device`` for a processor socket."""
    cpus = all_sockets[number]
    entries = [entry for entry in _cpuinfo(system) if int(entry["processor"]) in cpus]
    first = entries[0] if entries else {}
    base = _cpu_folder(system) / f"cpu{min(cpus)}"
    memory = _memory(system)
    return {
        "name": first.get("model name") or first.get("Hardware"),
        "cores": _cores(system, cpus, entries),
        "threads": len(cpus),
        "usable": len(cpus & _allowed()) if hasattr(os, "sched_getaffinity") else None,
        "memory": memory.get("MemTotal"),
        "memory_free": memory.get("MemAvailable"),
        "clock_mhz": _clock(system, cpus, entries),
        "clock_max_mhz": system.number(base / "cpufreq/cpuinfo_max_freq", 1e-3),
        "temperature_c": _temperature(system, list(all_sockets).index(number), len(all_sockets)),
        "numa_node": _numa_node(base),
        "driver": system.text(base / "cpufreq/scaling_driver"),
        "board": system.text(system.sys / "class/dmi/id/product_name"),
        "cpus": cpus,
    }


def counters(system: System, number: int, cpus: frozenset[int]) -> Counters:
    """Read the energy and load counters of a processor socket."""
    energy, wraps = None, 0.0
    for path in sorted((system.sys / "class/powercap").glob("intel-rapl:*")):
        if system.text(path / "name") == f"package-{number}":
            energy = system.number(path / "energy_uj")
            wraps = system.number(path / "max_energy_range_uj") or 0.0
    busy = total = 0
    for line in (system.text(system.proc / "stat") or "").splitlines():
        name, *times = line.split()
        if name[3:].isdigit() and name.startswith("cpu") and int(name[3:]) in cpus:
            units = [int(unit) for unit in times[:8]]  # those after it are counted in the first two
            total += sum(units)
            busy += sum(units) - sum(units[3:5])  # idle, and idle while something is read
    return Counters(energy, wraps, busy, total)


def power_between(before: Counters, after: Counters, seconds: float) -> float | None:
    """Return the mean power in watts between two counter readings."""
    if before.energy is None or after.energy is None or seconds <= 0:
        return None
    used = after.energy - before.energy
    if used < 0:
        used += after.wraps
    return used * 1e-6 / seconds if used >= 0 else None


def utilisation_between(before: Counters, after: Counters) -> float | None:
    """Return the processor load in per cent between two counter readings."""
    total = after.total - before.total
    return 100.0 * (after.busy - before.busy) / total if total > 0 else None


def _cpu_folder(system: System) -> Path:
    return system.sys / "devices/system/cpu"


def _processors(system: System) -> list[Path]:
    paths = _cpu_folder(system).glob("cpu[0-9]*")
    return sorted((p for p in paths if p.name[3:].isdigit()), key=lambda p: int(p.name[3:]))


def _allowed() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _cpuinfo(system: System) -> list[dict[str, str]]:
    """Parse /proc/cpuinfo into one dictionary per logical processor."""
    entries = []
    for block in (system.text(system.proc / "cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        entry = {key.strip(): value.strip() for key, _, value in pairs}
        if entry.get("processor", "").isdigit():
            entries.append(entry)
    return entries


def _cores(system: System, cpus: frozenset[int], entries: list[dict[str, str]]) -> int | None:
    files = (_cpu_folder(system) / f"cpu{cpu}/topology/core_cpus_list" for cpu in cpus)
    siblings = {system.text(path) for path in files} - {None}
    if siblings:
        return len(siblings)
    numbered = {entry["core id"] for entry in entries if "core id" in entry}
    return len(numbered) or None


def _clock(system: System, cpus: frozenset[int], entries: list[dict[str, str]]) -> float | None:
    texts = [entry.get("cpu MHz", "") for entry in entries]  # some kernels say Unknown
    clocks = [float(text) for text in texts if text.replace(".", "", 1).isdecimal()]
    if not any(clocks):
        base = _cpu_folder(system)
        paths = [base / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in sorted(cpus)[:_SAMPLED]]
        clocks = [system.number(path, 1e-3) or 0.0 for path in paths]
    known = [clock for clock in clocks if clock]
    return sum(known) / len(known) if known else None


def _temperature(system: System, position: int, count: int) -> float | None:
    """Return the temperature of one of ``count`` sockets; sensor numbering varies by driver."""
    chips = []
    for chip in sorted((system.sys / "class/hwmon").glob("hwmon*"), key=_trailing):
        name = system.text(chip / "name")
        if name == "coretemp":
            for label in chip.glob("temp*_label"):
                if system.text(label) == f"Package id {position}":
                    sensor = label.with_name(label.name.replace("_label", "_input"))
                    return system.number(sensor, 1e-3)
        if name in _CORE_SENSORS:
            chips.append(chip / "temp1_input")
    if not chips:
        zones = sorted((system.sys / "class/thermal").glob("thermal_zone*"), key=_trailing)
        chips = [z / "temp" for z in zones if system.text(z / "type") in _SOCKET_ZONES]
    return system.number(chips[position], 1e-3) if len(chips) == count else None


def _trailing(path: Path) -> int:
    match = re.search(r"\d+$", path.name)
    return int(match[0]) if match else 0


def _numa_node(processor: Path) -> int | None:
    try:
        return min((_trailing(path) for path in processor.glob("node[0-9]*")), default=None)
    except OSError:
        return None


def _memory(system: System) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes by name."""
    sizes = {}
    for line in (system.text(system.proc / "meminfo") or "").splitlines():
        match = re.fullmatch(r"(\w+):\s+(\d+) kB", line)
        if match:
            sizes[match[1]] = int(match[2]) * 1024
    return sizes


def describe_all(system: System) -> list[dict[str, Any]]:
    """Return the fields of a ``Device`` for each GPU; empty without a driver."""
    nvml = system.nvml
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as problem:
        system.note(f"No GPU is listed: {problem}.")
        return []
    try:
        driver = _ask(nvml, nvml.nvmlSystemGetDriverVersion)
        count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
        return [_describe(system, index, driver) for index in range(count)]
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _ask(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the GPU driver; return None if unsupported or not permitted."""
    try:
        value = function(*arguments)
    except nvml.NVMLError:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _describe(system: System, index: int, driver: str | None) -> dict[str, Any]:
    nvml = system.nvml
    handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        system.note(f"GPU {index} does not answer.")
        return {"driver": driver}

    def ask(name: str, *arguments: Any) -> Any:
        function = getattr(nvml, f"nvmlDeviceGet{name}", None)
        return None if function is None else _ask(nvml, function, handle, *arguments)

    memory, rates = ask("MemoryInfo"), ask("UtilizationRates")
    bus, capability = ask("PciInfo"), ask("CudaComputeCapability")
    address = getattr(bus, "busId", None)
    return {
        "name": ask("Name"),
        "architecture": None if capability is None else "sm_{}{}".format(*capability),
        "cores": ask("NumGpuCores"),
        "memory": getattr(memory, "total", None),
        "memory_free": getattr(memory, "free", None),
        "clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "temperature_c": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if (milliwatts := ask("PowerUsage")) is None else milliwatts * 1e-3,
        "utilisation": getattr(rates, "gpu", None),
        "numa_node": ask("NumaNodeId"),
        "driver": driver,
        "serial": ask("Serial"),
        "bus": address.decode() if isinstance(address, bytes) else address,
        "uuid": ask("UUID"),
    }


# Between two readings of counters: of energy, and of time that the kernel counts in hundredths.
_ENERGY_S, _BUSY_S = 0.05, 0.08


@dataclass
class Device:
    """A processor socket or a GPU; unknown values are None.

    Attributes:
        kind: ``CPU`` or ``GPU``; ``index`` counts the devices of a kind.
        cores: physical cores of a CPU, arithmetic units of a GPU.
        threads: that the system schedules on a CPU; this process may run on the ``usable`` ones.
        memory: bytes; of a CPU those of the machine, which its sockets share.
        power_w: of the whole socket or board.
        utilisation: per cent of time at work.
        cpus: logical processors of a socket.
    """

    id: int
    kind: str
    index: int
    name: str | None = None
    architecture: str | None = None
    cores: int | None = None
    threads: int | None = None
    usable: int | None = None
    memory: int | None = None
    memory_free: int | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    utilisation: float | None = None
    numa_node: int | None = None
    driver: str | None = None
    serial: str | None = None
    bus: str | None = None
    uuid: str | None = None
    board: str | None = None
    cpus: frozenset[int] = field(default_factory=frozenset)


def list_devices(system: System, *, utilisation: bool = False) -> list[Device]:
    """Return sockets, then GPUs; with ``utilisation``, measures the sockets' load for a moment."""
    sockets = cpus_by_socket(system)
    before = {number: counters(system, number, cpus) for number, cpus in sockets.items()}
    started = time.monotonic()
    facts = {number: describe(system, number, sockets) for number in sockets}
    gpus = describe_all(system)
    if utilisation or any(reading.energy for reading in before.values()):
        interval = _BUSY_S if utilisation else _ENERGY_S
        time.sleep(max(0.0, started + interval - time.monotonic()))
    for number, entry in facts.items():
        after = counters(system, number, sockets[number])
        entry["power_w"] = power_between(before[number], after, time.monotonic() - started)
        entry["utilisation"] = utilisation_between(before[number], after) if utilisation else None
        entry["architecture"] = platform.machine() or None
    devices = [Device(i, "CPU", i, **entry) for i, entry in enumerate(facts.values())]
    devices += [Device(len(facts) + i, "GPU", i, **entry) for i, entry in enumerate(gpus)]
    return devices


def partition() -> str:
    """Return the host name, used as the name of the partition."""
    return socket.gethostname() or "localhost"
