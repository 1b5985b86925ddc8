"""Sends the messages of a watched script as JSON lines, over pipes of its own.

The messages of a script, by ``kind``:

- ``model``: ``model``, its number in the order of first updates; ``name``; ``tensors``, by name the
  ``shape``, the ``kind`` and the ``line`` that made it; again where the model has grown;
- ``state``: ``model``; ``step``, how many updates that model has had, from 0 for its start; and
  ``digests`` by name. The answer is awaited: ``go``, or the path of a file that the tensors are to
  be written to first;
- ``step``: ``model``; ``first`` and ``last`` of its updates, which are equal unless a call makes
  several; ``losses``, ``inputs``, and the user's ``line``;
- ``saved``: the file is complete;
- ``note``: ``text``, something that was changed so that both can be compared;
- ``end``: ``error``, the traceback of a script that failed, or null.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from abele.storage.digests import raw_bytes

GO = "go"
PARAMETER, BUFFER = "parameter", "buffer"
_MOST_LOSSES = 4096


class Channel:
    """The script's end.

    Args:
        answers: file descriptor to read from.
        messages: file descriptor to write to.
    """

    def __init__(self, answers: int, messages: int):
        self._answers = os.fdopen(answers, "r", encoding="utf-8")
        self._messages = os.fdopen(messages, "w", encoding="utf-8")

    def send(self, kind: str, **content: Any) -> None:
        """Send a message."""
        self._messages.write(json.dumps({"kind": kind, **content}) + "\n")
        self._messages.flush()

    def model(
        self,
        number: int,
        name: str,
        tensors: Mapping[str, torch.Tensor],
        kinds: Mapping[str, str],
        lines: Mapping[str, str],
    ) -> None:
        """Say which tensors a model has.

        Args:
            number: of the model, in the order of first updates.
            name: what the user calls it; empty if that is not known.
            tensors: parameters and buffers by name.
            kinds: which of the two they are.
            lines: who made them, where that is known.
        """
        said = {
            name: {"shape": list(value.shape), "kind": kinds[name], "line": lines.get(name, "")}
            for name, value in tensors.items()
        }
        self.send("model", model=number, name=name, tensors=said)

    def state(self, model: int, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tell the state of a model after one of its updates, and wait until it was compared."""
        digests = {name: digest(tensor) for name, tensor in tensors.items()}
        self.send("state", model=model, step=step, digests=digests)
        answer = self._answers.readline().rstrip("\n")
        if not answer:
            raise EOFError("whoever compares is gone")
        if answer != GO:
            plain = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            torch.save(plain, answer)
            self.send("saved")


def digest(tensor: torch.Tensor) -> str:
    """A hash of a tensor's numbers and type; views of one shape or another are alike."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return f"{plain.dtype} {hashlib.sha256(raw_bytes(plain)).hexdigest()[:24]}"


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """What is said of an input."""
    return {"shape": list(tensor.shape), "digest": digest(tensor)}


def numbers(loss: torch.Tensor) -> list[float]:
    """A loss as JSON can have it: exact, also for float32."""
    values: Any = loss.detach().double().flatten()[:_MOST_LOSSES]
    return values.tolist()
