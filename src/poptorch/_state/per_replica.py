"""Parameters that differ between groups of replicas: what a user asked for, and their return."""

from collections.abc import Mapping
from typing import Any

import torch

from abele._torch import without_torch_function
from abele.runtime.session import Session
from abele.step.replica_groups import Grouping, GroupType
from abele.trace.module_state import ModuleState
from poptorch._error import error
from poptorch._state.host_changes import same_bits
from poptorch.enums import CommGroupType, VariableRetrievalMode

Entries = Mapping[str, tuple[CommGroupType, int, VariableRetrievalMode]]


def groupings(entries: Entries, module: torch.nn.Module, replicas: int) -> dict[str, Grouping]:
    """Return the replica groups of parameters, by name in ``ModuleState``.

    Args:
        entries: (group type, replicas per group, retrieval mode) by name of the parameter.
        module: holds the parameters, each with a leading dimension for groups.
        replicas: how many there are.

    Raises:
        poptorch.Error: an unknown name, an entry of another form, a scalar, groups that do not
            divide the replicas, or a leading dimension that is not the number of groups.
    """
    if not entries:
        return {}
    first_names = {id(value): name for name, value in reversed(_all_named(module))}
    by_name = dict(_all_named(module))
    by_first_name = {}
    for name, entry in entries.items():
        if name not in by_name:
            raise error(
                f"per_replica_params names {name!r}, the model's parameters are {sorted(by_name)}."
            )
        kind, size, mode = _checked(name, entry)
        if kind is CommGroupType.All:
            continue
        grouping = _grouping(name, kind, size, replicas)
        _check_shape(name, by_name[name], grouping, mode)
        by_first_name[first_names[id(by_name[name])]] = grouping
    return by_first_name


def _all_named(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))


def _checked(name: str, entry: Any) -> tuple[CommGroupType, int, VariableRetrievalMode]:
    try:
        kind, size, mode = entry
        return CommGroupType(kind), int(size), VariableRetrievalMode(mode)
    except (TypeError, ValueError) as problem:
        raise error(
            f"per_replica_params[{name!r}] must be (CommGroupType, shards, VariableRetrievalMode), "
            f"found {entry!r}."
        ) from problem


def _grouping(name: str, kind: CommGroupType, size: int, replicas: int) -> Grouping:
    if kind is CommGroupType.NoGrouping:
        size = 1
    if size < 1 or replicas % size:
        raise error(
            f"Parameter {name}: groups of {size} replicas were asked for, but the replication "
            f"factor is {replicas}. Choose a number of shards that divides it."
        )
    orthogonal = kind is CommGroupType.Orthogonal
    return Grouping(replicas, size, GroupType.ORTHOGONAL if orthogonal else GroupType.CONSECUTIVE)


def _check_shape(
    name: str, value: torch.Tensor, grouping: Grouping, mode: VariableRetrievalMode
) -> None:
    if value.dim() == 0:
        raise error(
            f"Scalars cannot be passed as per-replica weight tensor values: {name} has no "
            "dimension for groups. Give it one, with one entry per group of replicas."
        )
    allowed = {grouping.count}
    if mode is VariableRetrievalMode.AllReplicas:
        allowed.add(grouping.replicas)  # as a copy to the host leaves it
    if value.shape[0] not in allowed:
        raise error(
            f"Parameter {name} has shape {list(value.shape)}, but its leading dimension must be "
            f"the number of groups: {grouping.count} ({grouping.replicas} replicas in groups of "
            f"{grouping.size})."
        )


def copy_parameters_home(session: Session, module: torch.nn.Module, entries: Entries) -> None:
    """Overwrite the module's parameters by the session's.

    A parameter retrieved from all replicas gets a leading dimension of their number.
    """
    host = ModuleState.of(module).params
    for name, value in host.items():
        if name not in session.config.replica_groups:
            value.copy_(session.read_param(name))
    if not session.config.replica_groups:
        return
    for name, parameter in _all_named(module):
        if name not in session.config.replica_groups:
            continue
        wanted = session.read_param(name, per_replica=_from_all(entries, module, name))
        with torch.no_grad(), without_torch_function():
            if parameter.shape != wanted.shape:
                parameter.data = wanted.to(parameter.device)
            else:
                parameter.copy_(wanted)


def _from_all(entries: Entries, module: torch.nn.Module, name: str) -> bool:
    by_name = dict(_all_named(module))
    return any(
        VariableRetrievalMode(mode) is VariableRetrievalMode.AllReplicas
        for other, (_, _, mode) in entries.items()
        if by_name[other] is by_name[name]
    )


def copy_buffers_to_replicas(session: Session, module: torch.nn.Module) -> None:
    """Send buffers that the host has changed; replicas keep their own of all others.

    Taking a device again must continue as if it had never been given up, and the host has but one
    replica's buffers.
    """
    session.write_buffers(changed_buffers(session, module))


def changed_buffers(session: Session, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the host's buffers that differ from replica 0's, by name."""
    present = session.buffers[0]
    return {
        name: value
        for name, value in ModuleState.of(module).buffers.items()
        if not same_bits(value, present[name])
    }
