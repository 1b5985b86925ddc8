"""Layers that several twins share, with weights in torch's layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Params = dict[str, jax.Array]


def linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    """[..., inputs] -> [..., outputs]; the weight is [outputs, inputs]."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def layer_norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    """Statistics over the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * params[f"{name}.weight"] + params[f"{name}.bias"]


def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Scores [..., classes], labels [...] -> the mean over all rows."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1)
    return -chosen.mean()


def attention(query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool) -> jax.Array:
    """[B, heads, length, width] each -> the same."""
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if causal:
        length = query.shape[-2]
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ value
