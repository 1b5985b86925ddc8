"""One time step of a recurrent layer and its gradients, by torch's operators in torch's order.

Order decides about last bits: gradients of a state are added up in that in which torch's autograd
comes to those who read it, and what several operators of torch compute is computed by as many.
"""

from __future__ import annotations

import abc

import torch

aten = torch.ops.aten

Tensors = tuple[torch.Tensor, ...]


class Cell(abc.ABC):
    """How the next state ``[batch, units]`` follows from products of inputs and of the state.

    Attributes:
        kept: how many tensors ``backward`` reads beside states.
    """

    kept = 0

    @abc.abstractmethod
    def forward(
        self, of_input: torch.Tensor, of_state: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, Tensors]:
        """Return the next state, and what ``backward`` reads beside states.

        Args:
            of_input: product of the input and its weight ``[batch, gates * units]``.
            of_state: likewise of the state.
            h: the state.
        """

    @abc.abstractmethod
    def backward(
        self, grad: torch.Tensor, before: torch.Tensor, after: torch.Tensor, kept: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """Return gradients of both products, and those of the state that come from no product.

        Args:
            grad: of the next state.
            before: the state.
            after: the next state.
            kept: what ``forward`` returned.
        """


class Gru(Cell):
    """Reset, update and candidate."""

    kept = 4

    def forward(
        self, of_input: torch.Tensor, of_state: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, Tensors]:
        """Keep the three gates, and between the last two the candidate's product of the state."""
        inputs, products = of_input.unsafe_chunk(3, 1), of_state.unsafe_chunk(3, 1)
        # In place: where rows lie apart, other elements of them are computed one by one.
        reset = products[0].add_(inputs[0]).sigmoid_()
        update = products[1].add_(inputs[1]).sigmoid_()
        candidate = (inputs[2] + products[2] * reset).tanh()
        after = (h - candidate) * update + candidate
        return after, (reset, update, products[2], candidate)

    def backward(
        self, grad: torch.Tensor, before: torch.Tensor, after: torch.Tensor, kept: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """Pass on what the update gate lets through."""
        del after
        reset, update, product, candidate = kept
        passed = grad * update
        of_update = aten.sigmoid_backward(grad * (before - candidate), update)
        of_candidate = aten.tanh_backward(grad - passed, candidate)
        of_reset = aten.sigmoid_backward(of_candidate * product, reset)
        of_input = torch.cat([of_reset, of_update, of_candidate], 1)
        of_state = torch.cat([of_reset, of_update, of_candidate * reset], 1)
        return of_input, of_state, (passed,)


class Tanh(Cell):
    """The hyperbolic tangent of the sum of both products."""

    def forward(
        self, of_input: torch.Tensor, of_state: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, Tensors]:
        """Keep nothing."""
        del h
        return (of_state + of_input).tanh(), ()

    def backward(
        self, grad: torch.Tensor, before: torch.Tensor, after: torch.Tensor, kept: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """Both products have the same gradient."""
        del before, kept
        made = aten.tanh_backward(grad, after)
        return made, made, ()


class Relu(Cell):
    """The positive part of the sum of both products."""

    def forward(
        self, of_input: torch.Tensor, of_state: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, Tensors]:
        """Keep nothing."""
        del h
        return (of_state + of_input).relu(), ()

    def backward(
        self, grad: torch.Tensor, before: torch.Tensor, after: torch.Tensor, kept: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """Both products have the same gradient."""
        del before, kept
        made = aten.threshold_backward(grad, after, 0)
        return made, made, ()


CELLS: dict[str, Cell] = {"gru": Gru(), "rnn_tanh": Tanh(), "rnn_relu": Relu()}
