"""Attention in emitted code is that of the interpreter."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele.ops import half_products
from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

ROUNDED = {"rtol": 2e-2, "atol": 2e-2, "signed_zeros": False}
G = torch.Generator().manual_seed(8)
FORWARD = "_scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward.default"


def heads(queries, keys=None, depth=24):
    """Query, key and value of two samples and three heads."""
    keys = queries if keys is None else keys
    return tuple(torch.randn(2, 3, n, depth, generator=G) for n in (queries, keys, keys))


def attention(**settings):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **settings)


def of_one_tensor(x):
    """As layers have it: one tensor with query, key and value of all heads."""
    q, k, v = x.view(2, 33, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def as_torch_layers_copy(x):
    """Positions first, and copies that have queries, keys and values behind each other."""
    joint = x.unflatten(-1, (3, 32)).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    heads = [each.view(33, 8, 8).transpose(0, 1).view(2, 4, 33, 8) for each in joint]
    seen = F.scaled_dot_product_attention(*heads)
    return seen.permute(2, 0, 1, 3).contiguous().view(66, 32)


def in_bfloat16(function, inputs, **settings):
    """A case of our kernel for bfloat16, whatever the processor has."""
    return Case(function, tuple(each.bfloat16() for each in inputs), **(ROUNDED | settings))


@pytest.fixture(autouse=True, scope="module")
def has_products():
    """The processor has instructions for bfloat16, as programs see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(half_products, "has_bfloat16_products", lambda: True)
        yield


CASES = {
    "short": Case(attention(), heads(7), True),
    "causal": Case(attention(is_causal=True), heads(64), True),
    "of several blocks": Case(attention(), heads(150), True),
    "causal, of several blocks": Case(attention(is_causal=True), heads(150), True),
    "more keys": Case(attention(is_causal=True), heads(20, 90), True),
    "fewer keys": Case(attention(is_causal=True), heads(130, 70), True),
    "with a scale": Case(attention(scale=0.05), heads(40), True),
    "other orders": Case(of_one_tensor, (torch.randn(2, 33, 96, generator=G),), True),
    "copied": Case(as_torch_layers_copy, (torch.randn(33, 2, 96, generator=G),), True),
    "large scores": Case(attention(), tuple(30 * each for each in heads(40)), rtol=1e-4, atol=1e-3),
    "no number": Case(
        lambda q, k, v: (
            F.scaled_dot_product_attention(torch.cat([q[:, :, :2] * math.nan, q], 2), k, v),
            F.scaled_dot_product_attention(
                q, torch.cat([k, k[:, :, :2] * math.nan], 2), v[:, :, :1].expand(-1, -1, 12, -1)
            ),
        ),
        heads(10),
    ),
    "no number, of several vectors": Case(
        lambda q, k, v: F.scaled_dot_product_attention(
            torch.cat([q[:, :, :2] * math.nan, q], 2), k, v
        ),
        heads(10, 40),
    ),
    "no number, causal": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q * math.nan, k, v, is_causal=True),
        heads(40),
    ),
    "a negative scale": Case(attention(scale=-0.1), heads(20), True, {FORWARD: 1, BACKWARD: 1}),
    "many keys": Case(attention(), heads(3, 1100, 4), True, {FORWARD: 1, BACKWARD: 1}),
    "bfloat16": in_bfloat16(attention(), heads(150), gradients=True),
    "bfloat16, causal": in_bfloat16(attention(is_causal=True), heads(150), gradients=True),
    "bfloat16, of odd lengths": in_bfloat16(
        attention(is_causal=True, scale=0.4), heads(71, 33, 6), gradients=True
    ),
    "bfloat16, more keys": in_bfloat16(
        attention(is_causal=True), heads(21, 90, 32), gradients=True
    ),
    "bfloat16, other orders": in_bfloat16(
        of_one_tensor, (torch.randn(2, 33, 96, generator=G),), gradients=True
    ),
    "bfloat16, odd strides": in_bfloat16(
        lambda q, k, v: F.scaled_dot_product_attention(q[..., 1:], k[..., :6], v[..., 1:]),
        heads(40, depth=7),
        gradients=True,
    ),
    "bfloat16, odd depths": in_bfloat16(attention(), heads(40, depth=7), gradients=True),
    "bfloat16, no number": in_bfloat16(
        lambda q, k, v: F.scaled_dot_product_attention(
            torch.cat([q[:, :, :2] * math.nan, q], 2), k, v
        ),
        heads(10, 40),
    ),
}
