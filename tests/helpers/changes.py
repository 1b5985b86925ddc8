"""Changes of a weight that leave some or no trace, by name; each takes the weight."""

import torch


def _exchange(weight):
    weight.data.view(-1)[[0, 9]] = weight.data.view(-1)[[9, 0]]


def _array(weight):
    weight.detach().numpy()[0] += 1.5


def _last(weight):
    weight.data.view(-1)[-1] += 2


def _signs(weight):
    weight.data.view(-1)[[0, 64]] *= -1


def _in_place(weight):
    with torch.no_grad():
        weight.mul_(1.5)


CHANGES = {
    "through .data": lambda weight: weight.data.mul_(-1.25),
    "through an array": _array,
    "the last number": _last,
    "two signs": _signs,
    "two numbers that change places": _exchange,
    "in place": _in_place,
}
