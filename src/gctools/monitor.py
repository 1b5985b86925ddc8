"""``gc-monitor``: two tables, the devices of this machine and the processes that hold them."""

import argparse
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from gctools import _commands
from gctools._commands import UNKNOWN, count, elapsed, gibibytes, number, width_of, write
from gctools._devices import Device, list_devices, partition
from gctools._processes import Hold, list_holds
from gctools._tables import Column, Row, box, table
from gctools.system import System

_DEVICES = (
    Column("ID", align="right"),
    Column("Type"),
    Column("#", align="right", rank=5),
    Column("Name", least=16),
    Column("Cores", align="right"),
    Column("Usable", align="right", rank=6),
    Column("Memory (GiB)", align="right", rank=7),
    Column("Free (GiB)", align="right", rank=4),
    Column("Clock (MHz)", align="right", rank=3),
    Column("Temp (C)", align="right", rank=2),
    Column("Power (W)", align="right", rank=1),
    Column("NUMA", align="right", rank=8),
    Column("Driver", rank=9, least=8),
    Column("Bus", rank=10),
    Column("Serial", rank=11),
)
_OPTIONAL = ("NUMA", "Driver", "Bus", "Serial")  # left out where no device has one
_CLEAR_REST, _HOME, _CLEAR = "\033[K", "\033[H", "\033[J"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of the process; return the exit status."""
    options = _parser().parse_args(arguments)
    return _commands.run(
        "gc-monitor", lambda: _repeated(options) if options.watch else _once(options)
    )


def _parser() -> argparse.ArgumentParser:
    parser = _commands.parser(
        "gc-monitor", "Show the devices of this machine and the processes attached to them."
    )
    parser.add_argument(
        "--all-partitions", action="store_true", help="accepted; this machine is the only partition"
    )
    parser.add_argument("--no-card-info", action="store_true", help="leave out the device table")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_interval,
        const=2.0,
        metavar="SECONDS",
        help="refresh until Ctrl-C, every 2 seconds if no number is given",
    )
    return parser


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: give 0.1 to 86400 seconds")
    return value


def _once(options: argparse.Namespace) -> int:
    system = System.here()
    write(_frame(system, options, width_of(sys.stdout)))
    _commands.say_notes(system, "gc-monitor", verbose=options.verbose)
    return 0


def _repeated(options: argparse.Namespace) -> int:
    """Refresh in place on a terminal; elsewhere print one frame after the other."""
    system = System.here()
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    on_terminal = is_terminal and not options.json
    if on_terminal:
        print(_HOME + _CLEAR, end="")
    try:
        while True:
            began = time.monotonic()
            frame = _frame(system, options, width_of(sys.stdout))
            if on_terminal:
                lines = _fitting(frame, shutil.get_terminal_size().lines)
                write(_HOME + "".join(f"{line}{_CLEAR_REST}\n" for line in lines) + _CLEAR)
            else:
                write(frame)
            if options.verbose:
                _commands.say_notes(system, "gc-monitor", verbose=True)
                options.verbose = False
            time.sleep(max(0.0, options.watch - (time.monotonic() - began)))
    except KeyboardInterrupt:
        return 0


def _fitting(frame: str, height: int) -> list[str]:
    """Return the lines for which a terminal has room; a longer frame would scroll."""
    lines = [f"{time.strftime('%H:%M:%S')}  Ctrl-C ends", *frame.splitlines()]
    room = max(height - 2, 1)
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]


def _frame(system: System, options: argparse.Namespace, width: int | None) -> str:
    devices = list_devices(system)
    holds = list_holds(system, devices)
    if options.json:
        return json.dumps(as_json(devices, holds), indent=None if options.watch else 1)
    parts = [] if options.no_card_info else [device_table(devices, width)]
    return "\n\n".join(parts + process_tables(devices, holds, width))


def as_json(devices: Sequence[Device], holds: Sequence[Hold]) -> dict[str, Any]:
    """Devices and processes with numbers as numbers and ``null`` for what is not known."""
    return {
        "partition": partition(),
        "devices": [_plain(device) for device in devices],
        "processes": [dataclasses.asdict(hold) for hold in holds],
    }


def _plain(device: Device) -> dict[str, Any]:
    return {**dataclasses.asdict(device), "cpus": sorted(device.cpus)}


def device_table(devices: Sequence[Device], width: int | None) -> str:
    """Format the machine in a box, and a line for each device."""
    sockets = sum(device.kind == "CPU" for device in devices)
    gpus = len(devices) - sockets
    summary = (
        f"Partition: {partition()} [active] has {count(sockets, 'CPU socket')} and "
        f"{count(gpus, 'GPU')}"
    )
    least = len(summary) + 19  # what the box needs so as not to cut it
    if not devices:
        return box(["gc-monitor", summary], min(width or least, least))
    rows = [_device_row(device) for device in devices]
    shown = [
        i
        for i, column in enumerate(_DEVICES)
        if column.title not in _OPTIONAL or any(row[i] != UNKNOWN for row in rows)
    ]
    rows = [[row[i] for i in shown] for row in rows]
    groups = [group for group in (rows[:sockets], rows[sockets:]) if group]
    text = table([_DEVICES[i] for i in shown], groups, width)
    size = max(text.index("\n"), min(width or least, least))
    return "\n".join([box(["gc-monitor", summary], size), text])


def _device_row(device: Device) -> list[str]:
    return [
        str(device.id),
        device.kind,
        str(device.index),
        device.name or UNKNOWN,
        number(device.cores),
        number(device.usable),
        gibibytes(device.memory),
        gibibytes(device.memory_free),
        number(device.clock_mhz),
        number(device.temperature_c),
        number(device.power_w),
        number(device.numa_node),
        device.driver or UNKNOWN,
        device.bus or UNKNOWN,
        device.serial or UNKNOWN,
    ]


def process_tables(
    devices: Sequence[Device], holds: Sequence[Hold], width: int | None
) -> list[str]:
    """Format the processes of this machine, and those of other containers if any."""
    here = [hold for hold in holds if hold.elsewhere is None]
    away = [hold for hold in holds if hold.elsewhere is not None]
    if not here:
        title = f"No attached processes in partition {partition()}"
        tables = [box([title], min(width or 79, max(79, len(title) + 4)))]
    else:
        title = f"Attached processes in partition {partition()}"
        columns = (
            Column("PID", align="right"),
            Column("Command", least=24),
            Column("Time", align="right"),
            Column("User", rank=3),
        )
        rows = [(hold, _who(hold)) for hold in here]
        tables = [_grouped(title, columns, rows, devices, width)]
    if away:
        title = f"Devices in {partition()} attached from other namespaces"
        columns = (Column("Application host", least=12), Column("User", rank=3))
        rows = [(hold, [str(hold.elsewhere), hold.user]) for hold in away]
        tables.append(_grouped(title, columns, rows, devices, width))
    return tables


def _who(hold: Hold) -> list[str]:
    program, space, rest = hold.command.partition(" ")
    command = program.rpartition("/")[2] + space + rest
    return [str(hold.pid), command, elapsed(hold.seconds), hold.user]


def _grouped(
    title: str,
    columns: Sequence[Column],
    holds: Sequence[tuple[Hold, list[str]]],
    devices: Sequence[Device],
    width: int | None,
) -> str:
    """Group rows by device; values of the full board are only in the first row of each."""
    columns = (
        *columns,
        Column("Device", align="right"),
        Column("Type", rank=6),
        Column("Target", rank=5),
        Column("Clock (MHz)", align="right", rank=4),
        Column("Board temp (C)", align="right", rank=2),
        Column("Board power (W)", align="right", rank=1),
    )
    groups: list[list[Row]] = []
    for device in devices:
        rows = [(h, texts) for h, texts in holds if device.id in h.devices]
        if rows:
            groups.append(
                [_on_device(h, texts, device, first=not i) for i, (h, texts) in enumerate(rows)]
            )
    unknown = [
        [*t, UNKNOWN, UNKNOWN, h.target, *([UNKNOWN] * 3)] for h, t in holds if not h.devices
    ]
    return table(columns, [*groups, *([unknown] if unknown else [])], width, title)


def _on_device(hold: Hold, texts: list[str], device: Device, *, first: bool) -> Row:
    board = [number(device.temperature_c), number(device.power_w)] if first else ["", ""]
    clock = number(device.clock_mhz)
    return [*texts, str(device.id), device.kind, hold.target, clock, *board]


if __name__ == "__main__":
    sys.exit(main())
