"""Everything a session keeps between calls, as named tensors: to be stored and put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from abele.errors import SerializationError
from abele.runtime.session import Session

PARAMS, BUFFERS = "params", "buffers"


def tensors_of(session: Session) -> dict[str, torch.Tensor]:
    """The session's own tensors (not copies) by ``kind/name``; buffers by ``buffers/R/name``.

    Accumulators are not among them: between calls they are zero. Random streams are not either,
    see ``Session.random_state``.
    """
    named = {f"{PARAMS}/{name}": value for name, value in session.params.items()}
    for replica, buffers in enumerate(session.buffers):
        named |= {f"{BUFFERS}/{replica}/{name}": value for name, value in buffers.items()}
    named |= {f"optimizer/{name}": value for name, value in session.optimizer_state.items()}
    return named | {f"hyper/{name}": value for name, value in session.hyper.items()}


def put(session: Session, values: Mapping[str, torch.Tensor]) -> None:
    """Overwrites all state of a session by what ``tensors_of`` returned.

    Raises:
        SerializationError: the session keeps other tensors; names them.
    """
    own = tensors_of(session)
    unlike = own.keys() ^ values.keys()
    unlike |= {n for n in own.keys() & values.keys() if own[n].shape != values[n].shape}
    if unlike:
        raise SerializationError(
            f"The stored state does not fit this model: {', '.join(sorted(unlike)[:8])} are "
            "missing on one side or have another shape."
        )
    for name, value in own.items():
        value.copy_(values[name])
