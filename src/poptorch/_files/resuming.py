"""All state of a training wrapper, to be kept and put back so that training goes on to the bit.

A wrapper has a device only after its first call. What is put back before that call waits for it:
weights are in the user's module at once, the rest is written when the session is there.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from abele.errors import SerializationError
from abele.runtime import host_random, state
from abele.trace.module_state import ModuleState
from poptorch._error import error
from poptorch._files.saving import _present_state
from poptorch._logging import logger
from poptorch._optimizers.host import _extras
from poptorch._state import random_state as _random_state

if TYPE_CHECKING:
    from poptorch._wrapper.executor import PoplarExecutor


@dataclasses.dataclass
class Waiting:
    """State that waits for a session.

    Attributes:
        held: what ``state_of`` returned.
        told: whether an optimizer was set since, whose values then win.
    """

    held: Mapping[str, Any]
    told: bool = False


def state_of(executor: "PoplarExecutor") -> dict[str, Any]:
    """What a wrapper needs to go on.

    Returns:
        ``tensors``: parameters, buffers of each replica, optimizer state, values and counters by
        ``kind/name``; ``random``: its random numbers; ``told``: the optimizer's values as last
        set; ``schedule``: what has to be equal where it is put back; ``device``: its type.

    Raises:
        poptorch.Error: not compiled, so that there is no state yet.
    """
    session, rule = executor._get_compiled().session, executor._rule
    told = executor._told
    if told is None:
        told = {} if rule is None else rule.hyper()
    own = session.random_state is not None
    return {
        "tensors": _present_state(executor),
        "random": _random_state.read(session) if own or session.device.type != "cpu" else None,
        "told": dict(told),
        "schedule": schedule_of(executor),
        "device": session.device.type,
    }


def schedule_of(executor: "PoplarExecutor") -> dict[str, str]:
    """How a call consumes its batch, by option."""
    config = executor._config
    fields = {**config.compile_fields(), "device_iterations": config.device_iterations}
    return {name: str(value) for name, value in fields.items()}


def weights_of(executor: "PoplarExecutor", tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The same tensors under the names of the user's module, as its ``load_state_dict`` takes them.

    Args:
        executor: the wrapper.
        tensors: of ``state_of``; buffers are those of the first replica.
    """
    module = executor._user_model
    wanted = module.state_dict(keep_vars=True).keys()
    found = {}
    for kind, named in (
        (state.PARAMS, module.named_parameters(remove_duplicate=False)),
        (f"{state.BUFFERS}/0", module.named_buffers(remove_duplicate=False)),
    ):
        first: dict[int, str] = {}
        for name, value in named:
            if name in wanted:
                found[name] = tensors[f"{kind}/{first.setdefault(id(value), name)}"]
    return found


def put_back(executor: "PoplarExecutor", held: Mapping[str, Any], optimizer: Any) -> None:
    """Continues from what ``state_of`` returned; before the first call, at that call.

    Args:
        executor: made as the one that was kept.
        held: its state; buffers and random numbers may be of another process of the same run.
        optimizer: the one in use, with its groups put back; None if there is no object.

    Raises:
        poptorch.Error: another model, or other options; the message names what differs.
    """
    _check(executor, held)
    executor._waiting = None  # of an earlier call
    if optimizer is not None:
        executor._use(optimizer)
    executor._waiting = Waiting(held)
    if executor.isCompiled():
        _write(executor)
        return
    host = ModuleState.of(executor._user_model)
    with torch.no_grad():
        for name, value in host.params.items():
            found = held["tensors"][f"{state.PARAMS}/{name}"]
            if name not in executor.per_replica_params:
                value.copy_(found)
        for name, value in host.buffers.items():
            value.copy_(held["tensors"][f"{state.BUFFERS}/0/{name}"])
    executor._shared.version += 1


@contextlib.contextmanager
def around_compiling(executor: "PoplarExecutor") -> Iterator[None]:
    """Writes what waits once the block has made a session; compiling then draws no numbers."""
    if executor._waiting is None:
        yield
        return
    before = host_random.read()
    yield
    host_random.write(before)
    _write(executor)


def _write(executor: "PoplarExecutor") -> None:
    session, waiting = executor._get_compiled().session, executor._waiting
    assert waiting is not None
    held = waiting.held
    try:
        state.put(session, held["tensors"])
    except SerializationError as problem:
        raise error(f"The state of another model was put back: {problem}") from problem
    executor._waiting, executor._told = None, held["told"]
    if held["random"] is not None and held["device"] == session.device.type:
        _random_state.write(session, held["random"])
    elif held["device"] != session.device.type:
        logger.warning(
            "The state is of device type %s: its random numbers do not continue on %s.",
            held["device"],
            session.device.type,
        )
    executor._optimizer_state.pending = False
    executor._weights_changed()
    if waiting.told and executor._rule is not None:
        executor._told = None
        for name, value in executor._rule.hyper().items():
            if value != held["told"].get(name):
                session.set_hyper(name, value)


def _check(executor: "PoplarExecutor", held: Mapping[str, Any]) -> None:
    here, there = schedule_of(executor), held["schedule"]
    unlike = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    if unlike:
        said = ", ".join(f"{n} {there.get(n)} there, {here.get(n)} here" for n in unlike)
        raise error(
            f"The state was kept with other options: {said}. Use the same ones to go on, or load "
            "the weights alone."
        )
    host = ModuleState.of(executor._user_model)
    own = {f"{state.PARAMS}/{name}": value for name, value in host.params.items()}
    own |= {f"{state.BUFFERS}/0/{name}": value for name, value in host.buffers.items()}
    kinds = (f"{state.PARAMS}/", f"{state.BUFFERS}/0/")
    found = {n: value for n, value in held["tensors"].items() if n.startswith(kinds)}
    groups = {f"{state.PARAMS}/{name}" for name in executor.per_replica_params}
    different = [
        f"{name.partition('/')[2].removeprefix('0/')}: {_said(found, name)} there, "
        f"{_said(own, name)} here"
        for name in {**own, **found}
        if _form(own, name, groups) != _form(found, name, groups)
    ]
    if different:
        raise error(
            f"The state is of another model; {len(different)} of {len(own)} tensors differ: "
            f"{'; '.join(different[:4])}. Make the model as it was when the state was kept."
        )


def _form(tensors: Mapping[str, torch.Tensor], name: str, groups: set[str]) -> Any:
    value = tensors.get(name)
    if value is None:
        return None
    return value.dtype, None if name in groups else value.shape


def _said(tensors: Mapping[str, torch.Tensor], name: str) -> str:
    value = tensors.get(name)
    return "missing" if value is None else f"{list(value.shape)} {value.dtype}"


# -- the optimizer object --------------------------------------------------------------------


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the host knows of an optimizer: its class, groups and further values.

    The device's part, moments and counts, is in ``state_of``.
    """
    torchs = torch.optim.Optimizer.state_dict(optimizer)
    return {"class": type(optimizer).__name__, **torchs, "values": _values(optimizer)}


def put_optimizer(optimizer: torch.optim.Optimizer, held: Mapping[str, Any]) -> None:
    """Continues from what ``optimizer_state`` returned.

    Raises:
        poptorch.Error: another class, other groups, or values that cannot change have changed.
    """
    kind = type(optimizer).__name__
    if kind != held["class"]:
        raise error(
            f"The state is of optimizer {held['class']}, this one is {kind}. Use the same class."
        )
    here, there = _values(optimizer), held["values"]
    variable = here.get("variable attributes", [])
    unlike = [n for n in {**there, **here} if n not in variable and here.get(n) != there.get(n)]
    if unlike:
        said = ", ".join(f"{n} {there.get(n)} there, {here.get(n)} here" for n in unlike)
        raise error(
            f"The state is of an optimizer with other values: {said}. Make it as it was when the "
            "state was kept."
        )
    for name in variable:
        if name in there:
            setattr(optimizer, name, there[name])
    try:
        torch.optim.Optimizer.load_state_dict(
            optimizer, {"state": held["state"], "param_groups": held["param_groups"]}
        )
    except ValueError as problem:
        raise error(f"The state is of an optimizer with other groups: {problem}") from problem


def _values(optimizer: Any) -> dict[str, Any]:
    """Attributes that this package's optimizers have beside torch's."""
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is None:
        return {}
    common = {"state", "defaults", "param_groups", "variable_attrs"}
    names = [name for name in _extras(optimizer) if name not in common]
    found = {name: getattr(optimizer, name) for name in names}
    return {**found, "variable attributes": sorted(attributes._variable_attributes)}
