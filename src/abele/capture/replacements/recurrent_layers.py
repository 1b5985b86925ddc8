"""GRU and plain RNN layers as one operator per layer and direction (``ops.recurrent``).

A gradient is summed in the order in which backward comes to those who read a tensor. The gradient
of a weight of the state has a term for each time step; as one operator, a layer adds all of them up
before terms of other readers. Its bits are torch's only where it is the only one to read that
tensor, which is known once forward is traced (``require_only_readers``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from abele import _torch
from abele.ops import recurrent
from abele.ops.recurrent import StepsNeeded

_KINDS: dict[Callable[..., Any], str] = {
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
#: Layers of fewer time steps remain torch's operators: a decoder calls its layers for each symbol,
#: with the same weights.
LEAST_STEPS = 8


def is_layer(func: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> bool:
    """Return whether ``layers`` can compute a call of a recurrent torch function.

    Packed sequences have their lengths as second argument, and stay in torch's own form.
    """
    if func not in _KINDS or kwargs or len(args) != 9 or not isinstance(args[1], torch.Tensor):
        return False
    x, h, weights, *_, batch_first = args
    tensors = (x, h, *weights)
    if x.dim() != 3 or x.shape[1 if batch_first else 0] < LEAST_STEPS:
        return False
    return not torch.is_autocast_enabled("cpu") and all(map(_is_plain, tensors))


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = tensor.dtype, tensor.device.type
    return kind == (torch.float32, "cpu") and not _torch.is_transformed(tensor)


def layers(
    func: Callable[..., Any],
    x: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a GRU or RNN call of torch by one operator per layer and direction."""
    kind, directions = _KINDS[func], 2 if bidirectional else 1
    of_each = 4 if has_biases else 2
    groups = iter([weights[i : i + of_each] for i in range(0, len(weights), of_each)])
    states, last = iter(h.unbind(0)), list[torch.Tensor]()
    x = x.transpose(0, 1) if batch_first else x
    for layer in range(num_layers):
        made = [
            _layer(kind, x, next(states), next(groups), direction == 1)
            for direction in range(directions)
        ]
        last += [h for _, h in made]
        x = torch.cat([each for each, _ in made], -1) if bidirectional else made[0][0]
        if dropout and train and layer + 1 < num_layers:
            x = torch.dropout(x, dropout, train)
    return (x.transpose(0, 1) if batch_first else x), torch.stack(last)


def _layer(
    kind: str, x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    follows = torch.is_grad_enabled()
    trained = follows and weights[0].requires_grad
    differentiable = follows and any(each.requires_grad for each in (x, h, *weights))
    states, last, _ = recurrent.forward(kind, x, h, weights, reverse, trained, differentiable)
    return states, last


def require_only_readers(graph: torch.fx.Graph) -> None:
    """Raise StepsNeeded where others read a recurrent layer's weights: last bits would differ."""
    for node in graph.nodes:
        if node.target is recurrent.forward and any(len(n.users) > 1 for n in _summed(node)):
            raise StepsNeeded


def _summed(layer: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield a recurrent layer's hidden-state weight and bias, whose gradients sum over time.

    So has the first state's gradient, but each layer gets a separate view of that.
    """
    weights: Any = layer.args[3]
    yield from weights[1::2]
