"""Groups of replicas, and parameters with one value per group.

A per-replica parameter has one value per group. Outside the session it is one tensor with a
leading dimension for groups. Inside, each group's value is a separate tensor, called ``weight[0]``,
``weight[1]``, ... The program of a micro-batch takes its replica's tensor under the plain name; the
``apply`` program takes them all. An update thus treats each group's value as a separate
parameter, as trust ratios and step counts require.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence

import torch

from abele.errors import BatchError
from abele.program import Role, Slot

ACCUMULATOR = "accumulator."  # prefix of the slot of a parameter's accumulator


class GroupType(enum.StrEnum):
    """Assignment of replicas to ``c`` groups of ``k`` replicas."""

    CONSECUTIVE = "consecutive"  # {0 .. k-1}, {k .. 2k-1}, ...
    ORTHOGONAL = "orthogonal"  # {0, c, 2c ..}, {1, c+1, ..}, ...


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A division of replicas into groups of equal size.

    Attributes:
        replicas: how many there are.
        size: replicas in each group; divides ``replicas``.
        type: assignment of replicas to groups.

    Raises:
        BatchError: the size does not divide the replicas.
    """

    replicas: int
    size: int = 1
    type: GroupType = GroupType.CONSECUTIVE

    def __post_init__(self):
        if self.size < 1 or self.replicas % self.size:
            raise BatchError(
                f"Groups of {self.size} replicas were asked for, but there are {self.replicas} "
                "replicas. Choose a group size that divides them."
            )

    @property
    def count(self) -> int:
        """The number of replica groups."""
        return self.replicas // self.size

    def group_of(self, replica: int) -> int:
        """Return the group index of a replica."""
        if self.type is GroupType.ORTHOGONAL:
            return replica % self.count
        return replica // self.size

    def firsts(self) -> list[int]:
        """Return the lowest replica index of each group."""
        step = 1 if self.type is GroupType.ORTHOGONAL else self.size
        return [group * step for group in range(self.count)]


Groupings = Mapping[str, Grouping]


def name_in(name: str, group: int) -> str:
    """Return the name of a replica group's own tensor of a parameter, such as ``weight[0]``."""
    return f"{name}[{group}]"


def names_in(names: Sequence[str], groups: Groupings) -> list[str]:
    """Return parameter names, with one name per group for each per-replica parameter."""
    stored_names: list[str] = []
    for name in names:
        grouping = groups.get(name)
        count = 0 if grouping is None else grouping.count
        stored_names += [name_in(name, group) for group in range(count)] if grouping else [name]
    return stored_names


def split(values: Mapping[str, torch.Tensor], groups: Groupings) -> dict[str, torch.Tensor]:
    """Split parameters with replica groups into one tensor per group.

    Args:
        values: shape ``[groups, ...]``, or ``[replicas, ...]`` of which each group's first replica
            counts, for parameters in ``groups``.
        groups: by name of the parameter.
    """
    parts: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        parts |= dict(_parts(name, value, groups.get(name)))
    return parts


def _parts(
    name: str, value: torch.Tensor, grouping: Grouping | None
) -> Iterator[tuple[str, torch.Tensor]]:
    if grouping is None:
        yield name, value
        return
    rows = range(grouping.count)
    if value.shape[0] != grouping.count:
        rows = grouping.firsts()
    for group, row in enumerate(rows):
        yield name_in(name, group), value[row]


def joined_params(stored: Mapping[str, torch.Tensor], groups: Groupings) -> dict[str, torch.Tensor]:
    """Stack the tensors of parameter groups again: the inverse of ``split``."""
    owners = {part: name for name in groups for part in names_in([name], groups)}
    params: dict[str, torch.Tensor] = {}
    for part, value in stored.items():
        name = owners.get(part, part)
        if name not in params:
            params[name] = value if name == part else joined(stored, name, groups[name])
    return params


def split_state(state: Mapping[str, torch.Tensor], groups: Groupings) -> dict[str, torch.Tensor]:
    """Split optimizer state by replica group; step counts are the same in each group."""
    if not groups:
        return dict(state)
    slots: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        param, _, key = name.rpartition(".")
        grouping = groups.get(param)
        if grouping is not None and value.dim() == 0:
            value = value.expand(grouping.count)
        parts = _parts(param, value, grouping)
        slots |= {f"{stored}.{key}": part for stored, part in parts}
    return slots


def joined(
    stored: Mapping[str, torch.Tensor], name: str, grouping: Grouping, *, per_replica: bool = False
) -> torch.Tensor:
    """Stack a parameter's tensors of all groups as ``[groups, ...]`` or ``[replicas, ...]``."""
    members = range(grouping.replicas if per_replica else grouping.count)
    chosen = [grouping.group_of(index) if per_replica else index for index in members]
    return torch.stack([stored[name_in(name, group)] for group in chosen])


def joined_state(stored: Mapping[str, torch.Tensor], groups: Groupings) -> dict[str, torch.Tensor]:
    """Stack optimizer state of replica groups: the inverse of ``split_state``."""
    grouped: set[str] = set()
    slots: dict[str, torch.Tensor] = {}
    for name in groups:
        prefix = f"{name_in(name, 0)}."
        for key in [slot.removeprefix(prefix) for slot in stored if slot.startswith(prefix)]:
            parts = [f"{stem}.{key}" for stem in names_in([name], groups)]
            slots[f"{name}.{key}"] = torch.stack([stored[slot] for slot in parts])
            grouped |= set(parts)
    return {slot: value for slot, value in stored.items() if slot not in grouped} | slots


def stored_names(slot: Slot, groups: Groupings) -> list[str]:
    """Return all names of a slot's tensor in a session: one per group, or the slot's name."""
    prefix, owner, suffix = _taken_apart(slot)
    return [f"{prefix}{name}{suffix}" for name in names_in([owner], groups)]


def replica_name(slot: Slot, groups: Groupings, replica: int) -> str:
    """Return the name of the state tensor that one replica's program reads for a slot."""
    grouping = groups.get(_taken_apart(slot)[1])
    return slot.name if grouping is None else stored_names(slot, groups)[grouping.group_of(replica)]


def _taken_apart(slot: Slot) -> tuple[str, str, str]:
    """Split a slot's name into prefix, parameter name and suffix."""
    if slot.role is Role.ACCUMULATOR:
        return ACCUMULATOR, slot.name.removeprefix(ACCUMULATOR), ""
    if slot.role is Role.OPTIMIZER_STATE:
        owner, dot, key = slot.name.rpartition(".")
        return "", owner, dot + key
    return ("", slot.name, "") if slot.role is Role.PARAMETER else (slot.name, "", "")
