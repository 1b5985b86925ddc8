"""Beam search over the label sequences of connectionist temporal classification.

Prefix search as by Graves (2006) and Hannun (2014): a beam is a label sequence, its probability the
sum over all alignments that spell it, in two parts, ending in a blank or in its last label.
Importing this module registers the operator, which runs on the host.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import torch

from abele.ops._register import shapes_of

_FORWARD = "abele::ctc_beam_search"

torch.library.define(
    _FORWARD,
    "(Tensor log_probs, Tensor lengths, int blank, int beam_width, int top_paths)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@torch.library.impl(_FORWARD, "CompositeExplicitAutograd")
def _forward(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, ...]:
    time, batch, _ = log_probs.shape
    host = log_probs.detach().to("cpu", torch.float64).numpy()
    scores = np.full((batch, top_paths), -np.inf)
    sizes = np.zeros((batch, top_paths), dtype=np.int32)
    paths = np.full((batch, top_paths, time), blank, dtype=np.int32)
    num_steps: list[int] = cast("Any", lengths).tolist()
    for sample, length in enumerate(num_steps):
        search = _Search(blank, beam_width)
        for step in range(min(max(length, 0), time)):
            search.advance(host[step, sample])
        for rank, (score, labels) in enumerate(search.best(top_paths)):
            scores[sample, rank], sizes[sample, rank] = score, len(labels)
            paths[sample, rank, : len(labels)] = labels
    device = log_probs.device
    return (
        torch.as_tensor(scores, dtype=log_probs.dtype, device=device),
        torch.as_tensor(sizes, device=device),
        torch.as_tensor(paths, device=device),
    )


@shapes_of(_FORWARD)
def _forward_shape(
    log_probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, ...]:
    time, batch, _ = log_probs.shape
    shape = (batch, top_paths)
    return (
        log_probs.new_empty(shape),
        log_probs.new_empty(shape, dtype=torch.int32),
        log_probs.new_empty((*shape, time), dtype=torch.int32),
    )


forward = torch.ops.abele.ctc_beam_search.default


@dataclasses.dataclass
class _Beams:
    """The beams of one sample, one entry each.

    Attributes:
        node: the label sequence, as a node of the tree of all that were ever kept.
        parent: the sequence without its last label; -1 for the empty one.
        label: its last label; -1 for the empty one.
        blank: log probability of the alignments that end in a blank.
        spoken: of those that end in the last label.
    """

    node: Any
    parent: Any
    label: Any
    blank: Any
    spoken: Any

    @property
    def total(self) -> Any:
        return np.logaddexp(self.blank, self.spoken)


class _Search:
    def __init__(self, blank: int, width: int):
        self.blank, self.width = blank, width
        self.tree: list[tuple[int, int]] = [(-1, -1)]  # parent and label of each node
        self.children: dict[tuple[int, int], int] = {}
        first = np.array([-1])
        self.beams = _Beams(np.array([0]), first, first, np.zeros(1), np.full(1, -np.inf))

    def advance(self, log_probs: Any) -> None:
        """Extend the beams by a time step with these log probabilities by class."""
        beams, count = self.beams, len(self.beams.node)
        repeated = np.where(beams.label >= 0, log_probs[beams.label], -np.inf)
        blank = beams.total + log_probs[self.blank]
        spoken = beams.spoken + repeated
        grown = beams.total[:, None] + log_probs[None, :]
        # The same label again is another one only behind a blank.
        named = np.flatnonzero(beams.label >= 0)
        grown[named, beams.label[named]] = beams.blank[named] + repeated[named]
        grown[:, self.blank] = -np.inf
        # A beam that grows into another one adds to it.
        child, parent = np.nonzero(beams.parent[:, None] == beams.node[None, :])
        last = beams.label[child]
        spoken[child] = np.logaddexp(spoken[child], grown[parent, last])
        grown[parent, last] = -np.inf
        candidates = np.concatenate([np.logaddexp(blank, spoken), grown.ravel()])
        best = _largest(candidates, self.width)
        stay, grow = best[best < count], best[best >= count] - count
        self._keep(blank, spoken, grown, stay, *np.divmod(grow, grown.shape[1]))

    def _keep(self, blank: Any, spoken: Any, grown: Any, stay: Any, rows: Any, labels: Any) -> None:
        beams = self.beams
        parents = beams.node[rows]
        nodes = [self._child(*pair) for pair in zip(parents.tolist(), labels.tolist(), strict=True)]
        self.beams = _Beams(
            np.concatenate([beams.node[stay], np.array(nodes, dtype=np.int64)]),
            np.concatenate([beams.parent[stay], parents]),
            np.concatenate([beams.label[stay], labels]),
            np.concatenate([blank[stay], np.full(len(rows), -np.inf)]),
            np.concatenate([spoken[stay], grown[rows, labels]]),
        )

    def _child(self, parent: int, label: int) -> int:
        node = self.children.setdefault((parent, label), len(self.tree))
        if node == len(self.tree):
            self.tree.append((parent, label))
        return node

    def best(self, count: int) -> list[tuple[float, list[int]]]:
        """Log probability and labels of the best beams, the best first."""
        total = self.beams.total
        return [(float(total[i]), self._labels(self.beams.node[i])) for i in _largest(total, count)]

    def _labels(self, node: int) -> list[int]:
        labels: list[int] = []
        while node:
            node, label = self.tree[node]
            labels.append(label)
        return labels[::-1]


def _largest(values: Any, count: int) -> Any:
    """Return positions of the largest possible values, in falling order; equal ones in theirs."""
    order = np.argsort(-values, kind="stable")[:count]
    return order[values[order] > -np.inf]
