"""Export and import of a session's state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from abele.errors import SerializationError
from abele.runtime.session import Session

PARAMS, BUFFERS = "params", "buffers"
_OPTIMIZER, _HYPER, _COUNTER = "optimizer", "hyper", "counter"


def tensors_of(session: Session) -> dict[str, torch.Tensor]:
    """Return the tensors of a session's state by ``kind/name``; buffers by ``buffers/R/name``.

    Parameters that have groups, and their optimizer state, have a leading dimension for them.
    Accumulators are not among them: between calls they are zero. Random streams are not either,
    see ``Session.random_state``.
    """
    kinds = {
        PARAMS: session.read_params(),
        _OPTIMIZER: session.read_optimizer_state(),
        _HYPER: session.hyper,
        _COUNTER: session.counters,
    }
    for replica, buffers in enumerate(session.buffers):
        kinds[f"{BUFFERS}/{replica}"] = buffers
    return {
        f"{kind}/{name}": value
        for kind, tensors in kinds.items()
        for name, value in tensors.items()
    }


def put(session: Session, values: Mapping[str, torch.Tensor]) -> None:
    """Overwrite all state of a session by the result of ``tensors_of``.

    With other processes, all have to do the same before the next update, which checks it.

    Raises:
        SerializationError: the session keeps other tensors; names them.
    """
    present = tensors_of(session)
    unlike = present.keys() ^ values.keys()
    unlike |= {n for n in present.keys() & values.keys() if present[n].shape != values[n].shape}
    if unlike:
        raise SerializationError(
            f"The stored state does not fit this model: {', '.join(sorted(unlike)[:8])} are "
            "missing on one side or have another shape."
        )
    session.write_params(of_kind(values, PARAMS))
    session.write_optimizer_state(of_kind(values, _OPTIMIZER))
    session.write_counters(of_kind(values, _COUNTER))
    for name, value in of_kind(values, _HYPER).items():
        session.set_hyper(name, value.item())
    for replica, buffers in enumerate(session.buffers):
        for name, value in of_kind(values, f"{BUFFERS}/{replica}").items():
            buffers[name].copy_(value)


def of_kind(values: Mapping[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    """Return the state tensors of one kind, such as ``buffers``, by their own names."""
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
