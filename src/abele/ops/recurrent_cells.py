"""Recurrent cells (LSTM, GRU, RNN): one time step and its gradients, with torch's operators.

The order of operators decides about last bits: gradients of a state are added in the order in which
torch's autograd visits its readers, and each operator of torch stays one operator.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch

aten = torch.ops.aten

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]


class Cell(abc.ABC):
    """Base class of recurrent cells: computes the next state from input and hidden GEMMs and state.

    Attributes:
        index: the kind's number in ``abi.h``.
        gates: width of the products in units.
        kept: number of tensors that ``backward`` reads, besides states.
        states: number of tensors of a state: h, and c of an LSTM.
        reads_h: ``backward`` reads h.
        one_gradient: both products have the same gradient.
    """

    index: int
    gates = 1
    kept = 0
    states = 1
    reads_h = True
    one_gradient = True

    @abc.abstractmethod
    def forward(
        self, of_input: Tensor, of_state: Tensor, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Compute a time step: the next state and the tensors saved for ``backward``.

        Args:
            of_input: product of the input and its weight ``[batch, gates * units]``.
            of_state: product of h and its weight; may be overwritten.
            state: h, and c of an LSTM, ``[batch, units]``.
        """

    @abc.abstractmethod
    def backward(
        self, grads: Tensors, before: Tensors, after: Tensors, kept: Tensors
    ) -> tuple[Tensor, Tensor, Tensors, Tensors]:
        """Compute a time step's gradients of both GEMM results, h (as terms) and c.

        The product of the gradient of ``of_state`` and its weight is another term of that of h.
        Both are empty where a cell has none.

        Args:
            grads: of the next state.
            before: the state.
            after: the next state.
            kept: what ``forward`` returned.
        """


class Lstm(Cell):
    """LSTM cell: input gate (``entry``), forget gate, cell and output gate."""

    index, gates, kept, states, reads_h = 0, 4, 4, 2, False

    def forward(
        self, of_input: Tensor, of_state: Tensor, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the new state of an LSTM, and its four gates for backward."""
        entry, forget, cell, output = (of_state + of_input).unsafe_chunk(4, 1)
        entry, forget = entry.sigmoid(), forget.sigmoid()
        cell, output = cell.tanh(), output.sigmoid()
        c = forget * state[1] + entry * cell
        return (output * c.tanh(), c), (entry, forget, cell, output)

    def backward(
        self, grads: Tensors, before: Tensors, after: Tensors, kept: Tensors
    ) -> tuple[Tensor, Tensor, Tensors, Tensors]:
        """Compute an LSTM step's gradients; reads only c of the states."""
        (of_h, of_c), (entry, forget, cell, output) = grads, kept
        bent = after[1].tanh()
        of_c = of_c + aten.tanh_backward(of_h * output, bent)
        of_gates = [
            aten.sigmoid_backward(of_c * cell, entry),
            aten.sigmoid_backward(of_c * before[1], forget),
            aten.tanh_backward(of_c * entry, cell),
            aten.sigmoid_backward(of_h * bent, output),
        ]
        products = torch.cat(of_gates, 1)
        return products, products, (), (of_c * forget,)


class Gru(Cell):
    """GRU cell: reset gate, update gate and candidate."""

    index, gates, kept, one_gradient = 1, 3, 4, False

    def forward(
        self, of_input: Tensor, of_state: Tensor, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the new state of a GRU; for backward its gates and candidate's hidden product."""
        inputs, products = of_input.unsafe_chunk(3, 1), of_state.unsafe_chunk(3, 1)
        # In place as torch does: in strided rows, other elements are computed one by one.
        reset = products[0].add_(inputs[0]).sigmoid_()
        update = products[1].add_(inputs[1]).sigmoid_()
        candidate = (inputs[2] + products[2] * reset).tanh()
        after = (state[0] - candidate) * update + candidate
        return (after,), (reset, update, products[2], candidate)

    def backward(
        self, grads: Tensors, before: Tensors, after: Tensors, kept: Tensors
    ) -> tuple[Tensor, Tensor, Tensors, Tensors]:
        """Compute a GRU step's gradients; h gets the part passed by the update gate."""
        reset, update, product, candidate = kept
        passed = grads[0] * update
        of_update = aten.sigmoid_backward(grads[0] * (before[0] - candidate), update)
        of_candidate = aten.tanh_backward(grads[0] - passed, candidate)
        of_reset = aten.sigmoid_backward(of_candidate * product, reset)
        of_input = torch.cat([of_reset, of_update, of_candidate], 1)
        of_state = torch.cat([of_reset, of_update, of_candidate * reset], 1)
        return of_input, of_state, (passed,), ()


class Rnn(Cell):
    """Plain RNN cell: an activation of the sum of input and hidden product.

    Args:
        index: the kind's number in ``abi.h``.
        activate: the activation.
        gradient: gradient of its argument, from that of its result and the result.
    """

    def __init__(
        self,
        index: int,
        activate: Callable[..., Tensor],
        gradient: Callable[..., Tensor],
    ):
        self.index, self._activate, self._gradient = index, activate, gradient

    def forward(
        self, of_input: Tensor, of_state: Tensor, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the new state; backward of a plain RNN saves nothing else."""
        return (self._activate(of_state + of_input),), ()

    def backward(
        self, grads: Tensors, before: Tensors, after: Tensors, kept: Tensors
    ) -> tuple[Tensor, Tensor, Tensors, Tensors]:
        """Compute a plain RNN step's gradients; reads only the next state."""
        products = self._gradient(grads[0], after[0])
        return products, products, (), ()


def _relu_backward(grad: Tensor, result: Tensor) -> Tensor:
    return aten.threshold_backward(grad, result, 0)


CELLS: dict[str, Cell] = {
    "lstm": Lstm(),
    "gru": Gru(),
    "rnn_tanh": Rnn(2, torch.tanh, aten.tanh_backward.default),
    "rnn_relu": Rnn(3, torch.relu, _relu_backward),
}
