"""All-reduce of gradients across processes before each update.

Accumulators are views of one flat buffer per dtype, so that one exchange carries them all. A few
numbers follow them: whether a process had to cancel this update, whether it could run other
programs (`Votes`), and a checksum of what all must have in common (learning rates, overwritten
weights), which needs no separate exchange.

Half sums are exchanged in float32 and rounded once: gloo would round at every process.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from abele.collectives.torch_group import Collective, Counts
from abele.errors import CaptureError, CollectiveError, DisagreementError, StoppedError
from abele.program import Slot
from abele.step import loss_scaling, reduction
from abele.step.config import StepConfig
from abele.step.replica_groups import GroupType
from abele.warn import warn_user

_ALIGNMENT = 64  # bytes; compiled programs load whole vectors from the start of a tensor
_PIECES, _BITS = 6, 6  # of the checksum: squares of 6 bits are exact in a float32 sum
_MASK, _SHIFTS = (1 << _BITS) - 1, range(0, _PIECES * _BITS, _BITS)
_TAIL = 2 + 2 * _PIECES
_numbers = itertools.count(1)


def check_config(config: StepConfig) -> None:
    """Raise CaptureError, saying what to do instead, for what several processes compute wrongly."""
    if config.replica_groups:
        names = ", ".join(config.replica_groups)
        raise CaptureError(
            f"Parameters {names} differ between groups of replicas, and the replicas are spread "
            f"over {config.processes} processes, which is not supported. Give one process all "
            "replicas, or give the parameters one value."
        )
    if config.input_group_size > 1 and config.input_group_type is GroupType.ORTHOGONAL:
        raise CaptureError(
            "Orthogonal groups of replicas that share inputs would reach over "
            f"{config.processes} processes, each of which reads its own data. Use consecutive "
            "groups."
        )


class Wire:
    """Accumulators of one dtype in a flat buffer, and the buffer that processes exchange."""

    def __init__(self, slots: Mapping[str, Slot], device: torch.device):
        dtype = next(iter(slots.values())).dtype
        step = _ALIGNMENT // dtype.itemsize
        starts: list[int] = []
        total = 0
        for slot in slots.values():
            starts.append(total)
            total += -(-math.prod(slot.shape) // step) * step
        wide = torch.promote_types(dtype, torch.float32)
        self.exchanged = torch.zeros(total + _TAIL, dtype=wide, device=device)
        self._sums, self.tail = self.exchanged[:total], self.exchanged[total:]
        self._narrow = self._sums if wide is dtype else torch.zeros(total, dtype=dtype).to(device)
        self.views = {
            name: self._narrow[start : start + math.prod(slot.shape)].view(slot.shape)
            for (name, slot), start in zip(slots.items(), starts, strict=True)
        }

    def widen(self) -> None:
        """Copy the gradient sums to the buffer that is exchanged."""
        if self._narrow is not self._sums:
            self._sums.copy_(self._narrow)

    def narrow(self, share: float) -> None:
        """Copy the exchanged gradient sums back, multiplied by ``share``."""
        if share != 1.0:
            self._sums.mul_(share)
        if self._narrow is not self._sums:
            self._narrow.copy_(self._sums)


class Votes:
    """Votes of all processes on switching to other programs; every update carries them.

    All see the same sum, so all know the outcome after the same update.

    Attributes:
        mine: what this process votes in the updates to come.
    """

    UNDECIDED, FOR = 0, 1

    def __init__(self, size: int):
        self._size, self._sum = size, 0
        self.mine, self.against = self.UNDECIDED, size + 1

    def counted(self, total: float) -> None:
        """Record the sum of all processes' votes in an update."""
        self._sum = round(total)

    @property
    def outcome(self) -> bool | None:
        """True if all processes vote for the switch, False if one is against, None while open."""
        if self._sum > self._size:
            return False
        return True if self._sum == self._size else None


class Exchange:
    """The exchange of a session's gradients with the sessions of other processes.

    Args:
        collective: connects them.
        config: how gradients are combined.
        accumulators: the slots of all sums, by their name in the state.
        device: where they live.

    Raises:
        CaptureError: see ``check_config``.

    Attributes:
        accumulators: tensors for the slots, zero, views of flat buffers.
        updates: the number of updates.
        counts: calls, bytes and seconds of the exchanges.
        votes: of all processes about running other programs.
    """

    def __init__(
        self,
        collective: Collective,
        config: StepConfig,
        accumulators: Mapping[str, Slot],
        device: torch.device,
    ):
        check_config(config)
        self.collective, self.updates = collective, 0
        self.counts, self.votes = Counts(), Votes(collective.size)
        self._device = device
        # Every process makes its sessions in the same order, so that numbers tell which belong.
        self._topic = f"model {next(_numbers)}"
        by_type: dict[torch.dtype, dict[str, Slot]] = {}
        for name, slot in accumulators.items():
            by_type.setdefault(slot.dtype, {})[name] = slot
        self._wires = [Wire(slots, device) for slots in by_type.values()]
        self.accumulators = {n: view for wire in self._wires for n, view in wire.views.items()}
        # Only the last wire's tail is used; the tails of the others stay zero.
        self._tail = self._wires[-1].tail if self._wires else torch.zeros(_TAIL, device=device)
        # Scalars are written one by one; numpy takes a tenth of torch's time.
        self._tail_on_host = self._tail.numpy() if self._tail.device.type == "cpu" else None
        self._share = 1 / collective.size if reduction.runs_as_mean(config) else 1.0
        self._facts: dict[str, str] = {}
        self._crc = zlib.crc32(self._topic.encode())
        self._open = False
        self._saturated: torch.Tensor | None = None

    # -- before the first update -----------------------------------------------------------

    def same_start(self, state: Mapping[str, torch.Tensor]) -> list[str]:
        """Overwrite weights and optimizer state by those of process 0 where they differ.

        Returns:
            The names of tensors that differed, the same in all processes.
        """
        digests = {name: digest(value) for name, value in state.items()}
        whole = hashlib.blake2b("".join(digests.values()).encode()).hexdigest()
        if len(set(self.collective.gather("initial weights", whole))) == 1:
            return []
        text = "\n".join(digests.values())
        tables = [t.split("\n") for t in self.collective.gather("each initial weight", text)]
        different = [
            name for index, name in enumerate(state) if len({table[index] for table in tables}) > 1
        ]
        for name in different:
            self.collective.broadcast(state[name])
        if self.collective.rank == 0:
            shown = ", ".join(different[:4]) + (", ..." if len(different) > 4 else "")
            warn_user(
                f"Processes start with different weights ({len(different)} of {len(state)} "
                f"tensors: {shown}). All take those of process 0. Seed torch in the same way in "
                "all processes, or load the same checkpoint, and nothing has to be sent.",
                UserWarning,
            )
        return different

    # -- other programs --------------------------------------------------------------------

    def vote(self, problem: str | None) -> None:
        """Vote for or against switching to other programs, in all updates to come.

        Args:
            problem: why this process cannot; None if it can.
        """
        if problem is None:
            self.votes.mine = Votes.FOR
            return
        self.collective.tell(f"{self._topic} keeps its programs", problem)
        self.votes.mine = self.votes.against

    def objections(self) -> str:
        """Explain why processes voted against a switch of programs."""
        notes = self.collective.notes(f"{self._topic} keeps its programs")
        return "; ".join(f"process {rank}: {text.rstrip('.')}" for rank, text in notes.items())

    # -- each update -----------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an update: all processes wait for this process until ``reduce``."""
        self._open = True

    def reduce(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Sum the gradients of all processes, and check that their settings agree.

        Args:
            counters: those of an automatic loss scale are added too.

        Raises:
            StoppedError: another process cancelled this update; says why.
            DisagreementError: something that must be the same in all processes is not.
            RankLostError: a process has ended.
        """
        self._open = False
        self._send(self._own_tail())
        self._add_saturated(counters)
        self._check()
        for wire in self._wires:
            wire.narrow(self._share)
        self.updates += 1

    def after_update(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Record the loss-scale counters after an update."""
        saturated = counters.get(loss_scaling.SATURATED)
        if saturated is not None:
            self._saturated = saturated.clone()

    def give_up(self, problem: BaseException) -> None:
        """Cancel the current update in all processes."""
        if not self._open or isinstance(problem, CollectiveError):
            return
        self._open = False
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        self.collective.tell(f"{self._topic} gave up {self.updates}", text)
        self._send([1, *self._own_tail()[1:]])

    def note(self, name: str, value: str) -> None:
        """Record a value that must be the same in all processes from the next update on."""
        self._facts[name] = value
        text = "\n".join(f"{n}={v}" for n, v in sorted(self._facts.items()))
        self._crc = zlib.crc32(f"{self._topic}\n{text}".encode(errors="backslashreplace"))

    def _own_tail(self) -> list[int]:
        """Return the votes and checksum that this process sends with its gradient sums."""
        crc = zlib.crc32(b"\n%d" % self.updates, self._crc)
        pieces = [crc >> shift & _MASK for shift in _SHIFTS]
        return [0, self.votes.mine, *pieces, *[piece * piece for piece in pieces]]

    def note_written(
        self, kind: str, new: Mapping[str, torch.Tensor], old: Mapping[str, torch.Tensor]
    ) -> None:
        """Record that tensors are overwritten, unless their values stay."""
        before = self._facts.get(kind, "")
        for name, value in new.items():
            if name in old and not _same(value, old[name]):
                text = f"{before}{name}{digest(value)}".encode(errors="backslashreplace")
                before = hashlib.blake2b(text, digest_size=16).hexdigest()
        if before != self._facts.get(kind, ""):
            self.note(kind, before[:12])

    def close(self) -> None:
        """Release all processes from waiting for this process in further updates."""
        self.collective.leave(self._topic, f"has given up its model after {self.updates} updates")

    def _send(self, tail: list[int]) -> None:
        if self._tail_on_host is None:
            self._tail.copy_(torch.tensor(tail, dtype=self._tail.dtype))
        else:
            self._tail_on_host[:] = tail
        if not self._wires:
            self._add(self._tail)
        for wire in self._wires:
            wire.widen()
            self._add(wire.exchanged)
        if self._tail_on_host is not None:  # nobody votes elsewhere: only the host interprets
            # Before any error of this update: whoever gives it up must know the same as the others.
            self.votes.counted(self._tail_on_host[1])

    def _add(self, values: torch.Tensor) -> None:
        seconds = self.collective.counts.seconds
        self.collective.all_reduce(values, self._topic)
        self.counts.calls += 1
        self.counts.bytes += values.numel() * values.element_size()
        self.counts.seconds += self.collective.counts.seconds - seconds

    def _add_saturated(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Add all processes' new counts to counters; earlier counts have been added."""
        saturated = counters.get(loss_scaling.SATURATED)
        if saturated is None:
            return
        before = torch.zeros_like(saturated) if self._saturated is None else self._saturated
        new = saturated - before
        self._add(new)
        saturated.copy_(before + new)

    def _check(self) -> None:
        tail: Any = self._tail if self._tail_on_host is None else self._tail_on_host
        numbers: list[float] = tail.tolist()
        stopped, _, *sums = numbers
        if stopped:
            reasons = self.collective.notes(f"{self._topic} gave up {self.updates}")
            text = "; ".join(
                f"process {rank}: {reason.rstrip('.')}" for rank, reason in reasons.items()
            )
            raise StoppedError(
                f"Update {self.updates + 1} was given up, because it could not be made "
                f"everywhere: {text}. Weights are as after the last complete update."
            )
        values, squares = sums[:_PIECES], sums[_PIECES:]
        size = self.collective.size
        if [size * s for s in squares] != [v * v for v in values]:
            # All see the same sums, so all come here and compare by name.
            at = {"model": self._topic, "update": str(self.updates + 1)}
            self.collective.agree("an update", {**at, **self._facts})
            raise DisagreementError(
                f"Processes disagree in update {self.updates + 1}, and no longer afterwards."
            )


def digest(value: torch.Tensor) -> str:
    """Return a hash of a tensor's bits."""
    data = value.detach().reshape(-1).contiguous().cpu().view(torch.uint8).numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.to(other.device, other.dtype), other)
