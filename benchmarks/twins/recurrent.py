"""The twin of ``models.recurrent``: one scan, the inputs of all steps in one product."""

import jax
import jax.numpy as jnp
from jax import lax

from .parts import Params, cross_entropy, linear


def loss(params: Params, sequences: jax.Array, labels: jax.Array) -> jax.Array:
    """Sequences [B, steps, features], labels [B] -> loss."""
    from_input = params["layer.weight_ih_l0"].T
    from_state = params["layer.weight_hh_l0"].T
    bias = params["layer.bias_ih_l0"] + params["layer.bias_hh_l0"]
    gates_of_inputs = sequences.swapaxes(0, 1) @ from_input + bias

    def step(carry: tuple, gates: jax.Array) -> tuple:
        hidden, cell = carry
        opened, kept, new, shown = jnp.split(gates + hidden @ from_state, 4, axis=-1)
        cell = jax.nn.sigmoid(kept) * cell + jax.nn.sigmoid(opened) * jnp.tanh(new)
        return (jax.nn.sigmoid(shown) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((sequences.shape[0], from_state.shape[0]))
    (hidden, _), _ = lax.scan(step, (zeros, zeros), gates_of_inputs)
    return cross_entropy(linear(params, "head", hidden), labels)
