"""Command ``gc-monitor``: a table of this machine's devices and one of their processes."""

import dataclasses
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gctools import _commands
from gctools._commands import UNKNOWN, clean, elapsed, number
from gctools._devices import Device, list_devices, partition
from gctools._processes import Hold, list_holds
from gctools.system import System

#: Text columns, aligned left and wrapped on a narrow terminal; all other columns are numbers.
_TEXTS = frozenset({"Type", "Name", "Driver", "Bus", "Serial", "Command", "User", "Target"})
_NO_LIMIT = 10_000  # characters of a line, where a file or pipe takes any width

Row = dict[str, str]  # cells by the title of their column


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gc-monitor``, by default with the process's arguments; return the exit status."""
    parser = _commands.parser(
        "gc-monitor", "Show the devices of this machine and the processes attached to them."
    )
    parser.add_argument(
        "--all-partitions", action="store_true", help="accepted; this machine is the only partition"
    )
    parser.add_argument("--no-card-info", action="store_true", help="leave out the device table")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = _commands.parse(parser, arguments)
    system = System.here()
    devices = list_devices(system, utilisation=options.json)
    holds = list_holds(system, devices)
    if options.json:
        print(json.dumps(as_json(devices, holds), indent=1))
    elif importlib.util.find_spec("rich") is None:
        missing = "the package rich, which is not installed: pip install 'abele[monitor]'"
        parser.exit(1, f"gc-monitor needs {missing}, or --json, which needs none.\n")
    else:
        _print_tables([] if options.no_card_info else devices, devices, holds)
    _commands.say_notes(system, "gc-monitor", verbose=options.verbose)
    return 0


def as_json(devices: Sequence[Device], holds: Sequence[Hold]) -> dict[str, Any]:
    """Return devices and processes as JSON values; ``null`` for unknown values."""
    return {
        "partition": partition(),
        "devices": [{**dataclasses.asdict(d), "cpus": sorted(d.cpus)} for d in devices],
        "processes": [dataclasses.asdict(hold) for hold in holds],
    }


def _print_tables(shown: Sequence[Device], devices: Sequence[Device], holds: list[Hold]) -> None:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    limited = is_terminal or os.environ.get("COLUMNS", "").isdigit()
    width = shutil.get_terminal_size().columns if limited else _NO_LIMIT
    sockets = [_device_row(device) for device in shown if device.kind == "CPU"]
    gpus = [_device_row(device) for device in shown if device.kind != "CPU"]
    if shown or not devices:
        counts = f"{_count(len(sockets), 'CPU socket')} and {_count(len(gpus), 'GPU')}"
        print(f"gc-monitor: partition {partition()} [active] has {counts}")
        _print_table(width, [sockets, gpus])
        print()
    attached = "Attached" if holds else "No attached"
    print(f"{attached} processes in partition {partition()}")
    _print_table(width, [list(_hold_rows(device, holds)) for device in (*devices, None)])


def _count(value: int, noun: str) -> str:
    return f"{value} {noun}" if value == 1 else f"{value} {noun}s"


def _print_table(width: int, groups: Sequence[Sequence[Row]]) -> None:
    """Print a table with a rule between groups of rows; omit columns without values."""
    from rich import box, console, table, text

    rows = [row for group in groups for row in group]
    if not rows:
        return
    titles = [title for title in rows[0] if any(row[title] != UNKNOWN for row in rows)]
    drawn = table.Table(box=box.ASCII2)
    for title in titles:
        is_text = title in _TEXTS
        drawn.add_column(title, justify="left" if is_text else "right", no_wrap=not is_text)
    for group in groups:
        for row in group:
            drawn.add_row(*(text.Text(clean(row[title])) for title in titles))
        drawn.add_section()
    console.Console(width=width, color_system=None).print(drawn)


def _device_row(device: Device) -> Row:
    return {
        "ID": str(device.id),
        "Type": device.kind,
        "#": str(device.index),
        "Name": device.name or UNKNOWN,
        "Cores": number(device.cores),
        "Usable": number(device.usable),
        "Memory (GiB)": _gibibytes(device.memory),
        "Free (GiB)": _gibibytes(device.memory_free),
        "Clock (MHz)": number(device.clock_mhz),
        "Temp (C)": number(device.temperature_c),
        "Power (W)": number(device.power_w),
        "NUMA": number(device.numa_node),
        "Driver": device.driver or UNKNOWN,
        "Bus": device.bus or UNKNOWN,
        "Serial": device.serial or UNKNOWN,
    }


def _gibibytes(value: int | None) -> str:
    return number(None if value is None else value / 2**30, 1)


def _hold_rows(device: Device | None, holds: Sequence[Hold]) -> Iterator[Row]:
    """Yield the rows of the processes on a device; None selects those on no known device."""
    for hold in holds:
        if device.id in hold.devices if device else not hold.devices:
            program, space, rest = hold.command.partition(" ")
            yield {
                "PID": f"{hold.pid}@{hold.elsewhere}" if hold.elsewhere else str(hold.pid),
                "Command": program.rpartition("/")[2] + space + rest,
                "Time": elapsed(hold.seconds),
                "User": hold.user,
                "Device": str(device.id) if device else UNKNOWN,
                "Type": device.kind if device else UNKNOWN,
                "Target": hold.target,
                "Clock (MHz)": number(device.clock_mhz if device else None),
                "Board temp (C)": number(device.temperature_c if device else None),
                "Board power (W)": number(device.power_w if device else None),
            }


if __name__ == "__main__":
    sys.exit(main())
