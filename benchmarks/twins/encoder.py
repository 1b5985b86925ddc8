"""The twin of ``models.encoder``: torch's own encoder layer, the norm after each part."""

import jax

from .parts import Params, attention, cross_entropy, layer_norm, linear

HEADS, LAYERS = 4, 4


def _layer(params: Params, name: str, x: jax.Array) -> jax.Array:
    rows, length, width = x.shape
    weight, bias = (params[f"{name}.self_attn.in_proj_{part}"] for part in ("weight", "bias"))
    parts = (x @ weight.T + bias).reshape(rows, length, 3, HEADS, width // HEADS)
    seen = attention(*parts.transpose(2, 0, 3, 1, 4), causal=False)
    mixed = linear(params, f"{name}.self_attn.out_proj", seen.swapaxes(1, 2).reshape(x.shape))
    x = layer_norm(params, f"{name}.norm1", x + mixed)
    inner = jax.nn.relu(linear(params, f"{name}.linear1", x))
    return layer_norm(params, f"{name}.norm2", x + linear(params, f"{name}.linear2", inner))


def loss(params: Params, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Tokens and targets [B, sequence] -> loss."""
    x = params["embedding.weight"][tokens]
    for index in range(LAYERS):
        x = _layer(params, f"layers.layers.{index}", x)
    return cross_entropy(linear(params, "head", x), targets)
