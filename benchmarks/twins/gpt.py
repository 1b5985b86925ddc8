"""The twin of ``models.gpt``."""

import jax

from .parts import Params, attention, cross_entropy, layer_norm, linear

HEADS, LAYERS = 4, 4


def _block(params: Params, name: str, x: jax.Array) -> jax.Array:
    rows, length, width = x.shape
    joint = linear(params, f"{name}.joint", layer_norm(params, f"{name}.attention_norm", x))
    parts = joint.reshape(rows, length, 3, HEADS, width // HEADS).transpose(2, 0, 3, 1, 4)
    seen = attention(parts[0], parts[1], parts[2], causal=True)
    x = x + linear(params, f"{name}.mix", seen.swapaxes(1, 2).reshape(x.shape))
    inner = linear(params, f"{name}.widen", layer_norm(params, f"{name}.inner_norm", x))
    return x + linear(params, f"{name}.narrow", jax.nn.gelu(inner, approximate=False))


def loss(params: Params, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Tokens and targets [B, sequence] -> loss."""
    x = params["tokens.weight"][tokens] + params["positions.weight"][: tokens.shape[1]]
    for index in range(LAYERS):
        x = _block(params, f"blocks.{index}", x)
    scores = layer_norm(params, "norm", x) @ params["tokens.weight"].T
    return cross_entropy(scores, targets)
