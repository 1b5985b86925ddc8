"""Machines that are only files, and a driver that is only numbers, for the tools in ``gctools``."""

import json
import os
import time
from types import SimpleNamespace

BOOT = "11111111-2222-3333-4444-555555555555"
NAMESPACE = "pid:[4026531836]"
HOST = "node7"


def put(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


class Machine:
    """Trees that stand for /proc, /sys and a user's runtime folder."""

    def __init__(self, root):
        self.proc, self.sys, self.registry = root / "proc", root / "sys", root / "registry"
        for folder in (self.proc, self.sys, self.registry):
            folder.mkdir()
        put(self.proc, "sys/kernel/random/boot_id", BOOT)
        put(self.proc, "sys/kernel/hostname", HOST)
        put(self.proc, "1/stat", "1 (init) S 0")
        (self.proc / "self/ns").mkdir(parents=True)
        os.symlink(NAMESPACE, self.proc / "self/ns/pid")

    def system(self, nvml=None):
        from gctools.system import System

        return System(self.proc, self.sys, nvml, [self.registry])

    def add_sockets(self, count=2, cores=2, threads=2):
        """Cores whose two threads have numbers far apart, as Linux gives them."""
        blocks = []
        total = count * cores
        for cpu in range(total * threads):
            core = cpu % total
            package = core // cores
            siblings = ",".join(str(core + total * n) for n in range(threads))
            base = f"devices/system/cpu/cpu{cpu}"
            put(self.sys, f"{base}/topology/physical_package_id", package)
            put(self.sys, f"{base}/topology/core_cpus_list", siblings)
            put(self.sys, f"{base}/cpufreq/cpuinfo_max_freq", 3_500_000)
            (self.sys / base / f"node{package}").mkdir()
            blocks.append(
                f"processor\t: {cpu}\nmodel name\t: Test 9000\n"
                f"cpu MHz\t\t: {2000 + 100 * package}\n"
                f"physical id\t: {package}\ncore id\t\t: {core % cores}"
            )
        put(self.proc, "cpuinfo", "\n\n".join(blocks))
        put(self.proc, "meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB")

    def add_process(self, pid, started=5000, command="python\0train.py", cpus="0-7", state="S"):
        rest = " ".join(["0"] * 18)
        put(self.proc, f"{pid}/stat", f"{pid} (a) b) {state} {rest} {started} 0 0")
        put(self.proc, f"{pid}/status", f"Name:\tpython\nCpus_allowed_list:\t{cpus}")
        (self.proc / f"{pid}/cmdline").write_text(command)

    def add_record(self, pid, started=5000, held=None, name=None, **changed):
        """What ``abele.runtime.device_registry`` writes."""
        entry = {"target": "cpu", "device": "cpu", "since": time.time() - 241.5}
        record = {
            "format": 1,
            "pid": pid,
            "started": started,
            "namespace": NAMESPACE,
            "boot": BOOT,
            "host": HOST,
            "command": ["python", "written.py"],
            "held": [entry] if held is None else held,
        } | changed
        return put(self.registry, name or f"{pid}-{started}.json", json.dumps(record))


class NVMLError(Exception):
    pass


class Nvml:
    """A driver with GPUs; ``silent`` names questions that it refuses to answer."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, count=1, silent=(), broken=False):
        self.count, self.silent, self.broken, self.open = count, set(silent), broken, 0

    def nvmlInit(self):
        if self.broken:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return b"555.1"

    def nvmlDeviceGetCount(self):
        return self.count

    def __getattr__(self, name):
        key = name.removeprefix("nvmlDeviceGet")
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def answer(handle, *rest):
            if key in self.silent:
                raise NVMLError("Not Supported")
            return {
                "HandleByIndex": handle,
                "Name": "NVIDIA Test 100",
                "CudaComputeCapability": (9, 0),
                "NumGpuCores": 16896,
                "MemoryInfo": SimpleNamespace(total=80 * 2**30, free=60 * 2**30),
                "UtilizationRates": SimpleNamespace(gpu=37),
                "PciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
                "ClockInfo": 1980,
                "MaxClockInfo": 2010,
                "Temperature": 41,
                "PowerUsage": 312_500,
                "EnforcedPowerLimit": 700_000,
                "NumaNodeId": 1,
                "Serial": "1650",
                "CurrPcieLinkGeneration": 5,
                "CurrPcieLinkWidth": 16,
                "UUID": f"GPU-{handle}",
            }[key]

        return answer
