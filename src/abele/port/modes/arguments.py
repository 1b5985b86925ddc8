"""Changes the argument that chooses a mode, so that a port runs in the new one."""

from __future__ import annotations

from collections.abc import Sequence

from abele.errors import CheckError
from abele.port.modes.switch import Switch, members


def arguments_of_port(switch: Switch | None, arguments: Sequence[str]) -> list[str]:
    """The arguments with which a port runs in its new mode.

    Args:
        switch: of the program; None if it has none.
        arguments: of the program, such as ``run.compute_mode=CPU``.

    Raises:
        CheckError: none of them names a mode.
    """
    if switch is None:
        return list(arguments)
    names = {name.lower() for name in members(switch.cls)} - {switch.new.lower()}
    changed = [_changed(each, names, switch.new) for each in arguments]
    if changed == list(arguments):
        modes = ", ".join(members(switch.cls))
        raise CheckError(
            f"No argument behind -- names a mode ({modes}), so the port would not run in mode "
            f"{switch.new}. Give the one that chooses {switch.like} to the program; the port gets "
            f"{switch.new} in its place."
        )
    return changed


def _changed(argument: str, names: set[str], new: str) -> str:
    """An argument, or what is behind its last ``=``, with the new mode in the place of another."""
    key, equals, value = argument.rpartition("=")
    if value.lower() not in names:
        return argument
    return f"{key}{equals}{new.lower() if value.islower() else new}"
