"""The digest of a program, by which its executable is found.

Code is found without writing it again, so the digest is one of all that code is written from. A
lowering reads a program's graph and nothing else of it:

- nodes: the canonical text has their operators, their arguments with every bit, and shape, dtype,
  strides and device of every value, also inside loops and branches;
- constants: the tensors themselves count, not only what the text says of them. Addresses in code
  follow from strides, and numbers from bytes: 0.0 and -0.0 are equal and give other code.
  Nothing writes to constants, so it does not matter which of them share memory;
- slots: role, shape and dtype of each, and whether it is written.

Phases, scopes and source lines serve reports and messages, which are made from the program here.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from abele.program.printing import program_text
from abele.storage.digests import raw_bytes

if TYPE_CHECKING:
    from abele.program.core import Program


def fingerprint(program: Program) -> str:
    """Return the digest of a program; equal digests mean equal code from the same lowering."""
    digest = hashlib.sha256(
        program_text(program, provenance=False, strides=True).encode(errors="backslashreplace")
    )
    for name, value in sorted(dict(_constants(program.graph)).items()):
        layout = value.dtype, value.device.type, [*value.shape], [*value.stride()]
        lazy = value.storage_offset(), value.is_conj(), value.is_neg()
        digest.update(f"\0{name}\0{layout}\0{lazy}\0".encode(errors="backslashreplace"))
        digest.update(raw_bytes(value))
    return digest.hexdigest()


def _constants(graph: torch.fx.GraphModule, outer: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that nodes read as attributes, bodies included, by qualified name.

    Not ``state_dict``, which lacks tensors that are no registered buffers.
    """
    for node in graph.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value: Any = operator.attrgetter(name)(graph)
        if isinstance(value, torch.Tensor):
            yield f"{outer}{name}", value
        elif isinstance(value, torch.fx.GraphModule):
            yield from _constants(value, f"{outer}{name}.")
