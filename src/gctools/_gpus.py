"""GPUs, as their driver's own library describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        "power_w": _scaled(ask("PowerUsage"), 1e-3),
        "power_limit_w": _scaled(ask("EnforcedPowerLimit"), 1e-3),
        "utilisation": getattr(rates, "gpu", None),
        "numa_node": ask("NumaNodeId"),
        "driver": driver,
        "serial": ask("Serial"),
        "bus": address.decode() if isinstance(address, bytes) else address,
        "link_generation": ask("CurrPcieLinkGeneration"),
        "link_width": ask("CurrPcieLinkWidth"),
        "uuid": ask("UUID"),
    }


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
