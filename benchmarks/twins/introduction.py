"""The twin of the introduction model, ``garment_model.ClassificationModel``."""

import jax
import jax.numpy as jnp
from jax import lax

from .parts import Params, cross_entropy, linear

GROUPS = 3


def _convolution(params: Params, name: str, x: jax.Array) -> jax.Array:
    bias = params[f"{name}.bias"][:, None, None]
    return lax.conv(x, params[f"{name}.weight"], (1, 1), "VALID") + bias


def _group_norm(params: Params, x: jax.Array) -> jax.Array:
    groups = x.reshape(x.shape[0], GROUPS, -1)
    centred = groups - groups.mean(-1, keepdims=True)
    scale = lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    weight, bias = params["norm.weight"][:, None, None], params["norm.bias"][:, None, None]
    return (centred * scale).reshape(x.shape) * weight + bias


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Images [B, 1, 28, 28], labels [B] -> loss."""
    x = jax.nn.relu(_convolution(params, "conv1", images))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = _group_norm(params, jax.nn.relu(_convolution(params, "conv2", x)))
    hidden = jax.nn.relu(linear(params, "fc1", x.reshape(x.shape[0], -1)))
    return cross_entropy(linear(params, "fc2", hidden), labels)
