"""Devices of a machine: processor sockets, and GPUs as their driver describes them."""

import platform
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gctools import _cpus
from gctools.system import System


def describe_all(system: System) -> list[dict[str, Any]]:
    """Fields of a ``Device`` for each GPU; empty without a driver."""
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
    """Return the driver's answer; None if this GPU or this user gets none."""
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
        "power_w": _in_units(ask("PowerUsage"), 1e-3),
        "power_limit_w": _in_units(ask("EnforcedPowerLimit"), 1e-3),
        "utilisation": getattr(rates, "gpu", None),
        "numa_node": ask("NumaNodeId"),
        "driver": driver,
        "serial": ask("Serial"),
        "bus": address.decode() if isinstance(address, bytes) else address,
        "link_generation": ask("CurrPcieLinkGeneration"),
        "link_width": ask("CurrPcieLinkWidth"),
        "uuid": ask("UUID"),
    }


def _in_units(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


# Between two readings of counters: of energy, and of time that the kernel counts in hundredths.
_ENERGY_S, _BUSY_S = 0.05, 0.08


@dataclass
class Device:
    """A processor socket or a GPU. None stands for what the system does not tell.

    Attributes:
        id: number among all devices, from 0.
        kind: ``CPU`` or ``GPU``.
        index: number among devices of this kind, from 0.
        name: as its maker calls it.
        architecture: ``x86_64``, ``sm_90``.
        cores: physical cores of a CPU, arithmetic units of a GPU.
        threads: that the system schedules on it; only of a CPU.
        usable: threads that this process may run on; only of a CPU.
        memory: bytes; of a CPU those of the machine, which its sockets share.
        memory_free: bytes.
        clock_mhz: now.
        clock_max_mhz: at most.
        temperature_c: degrees Celsius.
        power_w: watts, of the whole socket or board.
        power_limit_w: watts.
        utilisation: per cent of time at work.
        numa_node: the memory next to it.
        driver: version.
        serial: number of the board.
        bus: PCI address.
        link_generation: of PCI Express, now.
        link_width: lanes, now.
        uuid: what tells it from all other GPUs.
        board: what the machine is called by its maker.
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
    power_limit_w: float | None = None
    utilisation: float | None = None
    numa_node: int | None = None
    driver: str | None = None
    serial: str | None = None
    bus: str | None = None
    link_generation: int | None = None
    link_width: int | None = None
    uuid: str | None = None
    board: str | None = None
    cpus: frozenset[int] = field(default_factory=frozenset)


def list_devices(system: System, *, utilisation: bool = False) -> list[Device]:
    """Return the sockets of a machine, then its GPUs; empty if the system tells nothing.

    Args:
        system: the machine.
        utilisation: whether to watch sockets for a moment to measure their load.
    """
    sockets = _cpus.sockets(system)
    before = {number: _cpus.counters(system, number, cpus) for number, cpus in sockets.items()}
    started = time.monotonic()
    facts = {number: _cpus.describe(system, number, sockets) for number in sockets}
    gpus = describe_all(system)
    if utilisation or any(reading.energy for reading in before.values()):
        interval = _BUSY_S if utilisation else _ENERGY_S
        time.sleep(max(0.0, started + interval - time.monotonic()))
    for number, entry in facts.items():
        after = _cpus.counters(system, number, sockets[number])
        entry["power_w"] = _cpus.power(before[number], after, time.monotonic() - started)
        entry["utilisation"] = _cpus.utilisation(before[number], after) if utilisation else None
        entry["architecture"] = platform.machine() or None
    devices = [Device(i, "CPU", i, **entry) for i, entry in enumerate(facts.values())]
    devices += [Device(len(facts) + i, "GPU", i, **entry) for i, entry in enumerate(gpus)]
    return devices


def partition() -> str:
    """Return the host name, which stands for the name of a partition."""
    return socket.gethostname() or "localhost"
