"""More update rules: those of ``torch.optim`` beyond what the front-ends' originals have.

Each computes what the class of its name does for one parameter at a time, which is how torch's
objects work on a processor, in the same order of operations. No rule reads a value: what torch
decides by one is computed both ways and chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from abele.step.arithmetic import (
    Number,
    Rule,
    State,
    axpy,
    count,
    counted,
    decayed,
    filled_where,
    is_zero,
    lerp,
    mean_of_squares,
    moments,
    moments_initial,
    one_minus,
    sqrt,
)

Values = Mapping[str, float]
Hyper = Mapping[str, Number]
#: State that is one number for a parameter of any shape.
SCALARS = frozenset({"step", "mu_product", "eta", "mu"})


def _number(param: torch.Tensor, value: float) -> torch.Tensor:
    # float32, as torch keeps it: it is rounded at each update.
    return torch.full((), value, dtype=torch.float32, device=param.device)


def _adadelta_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    return {
        "step": count(param),
        "square_avg": torch.zeros_like(param),
        "acc_delta": torch.zeros_like(param),
    }


def _adadelta(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adadelta (arXiv 1212.5701)."""
    counted(state)
    grad = decayed(param, grad, h)
    square, deltas = state["square_avg"], state["acc_delta"]
    square.copy_(mean_of_squares(square, grad, h["rho"]))
    delta = (deltas + h["eps"]).sqrt() / (square + h["eps"]).sqrt() * grad
    deltas.copy_(mean_of_squares(deltas, delta, h["rho"]))
    param.copy_(axpy(param, delta, h["lr"], sign=-1))


def _adagrad_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    start = values["initial_accumulator_value"]
    return {"step": count(param), "sum": torch.full_like(param, start)}


def _adagrad(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adagrad (Duchi et al., JMLR 12, 2011)."""
    step = counted(state)
    grad = decayed(param, grad, h)
    rate = h["lr"]
    if not is_zero(h["lr_decay"]):
        rate = rate / (1 + (step - 1) * h["lr_decay"])
    total = state["sum"]
    total.copy_(total.addcmul(grad, grad))
    param.copy_(param - (grad * rate) / (total.sqrt() + h["eps"]))


def _adamax_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    return {
        "step": count(param),
        "exp_avg": torch.zeros_like(param),
        "exp_inf": torch.zeros_like(param),
    }


def _adamax(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam with the largest gradient in place of the mean square (arXiv 1412.6980, section 7)."""
    step = counted(state)
    grad = decayed(param, grad, h)
    first, largest = state["exp_avg"], state["exp_inf"]
    first.copy_(lerp(first, grad, one_minus(h["beta1"])))
    largest.copy_(torch.maximum(largest * h["beta2"], grad.abs() + h["eps"]))
    param.copy_(param - (first * (h["lr"] / (1 - h["beta1"] ** step))) / largest)


def _nadam_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    return moments_initial(param, values) | {"mu_product": _number(param, 1.0)}


def _nadam(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam with Nesterov's momentum (Dozat, ICLR workshop 2016), which grows with the steps."""
    grad = decayed(param, grad, h)
    step = moments(grad, state, h)
    first, second, product = state["exp_avg"], state["exp_avg_sq"], state["mu_product"]
    mu = _nadam_momentum(step, h)
    mu_next = _nadam_momentum(step + 1, h)
    product.copy_(product * mu.to(product.dtype))
    so_far = product.double()
    root = (second / (1 - h["beta2"] ** step)).sqrt() + h["eps"]
    param.copy_(param + (grad * (-h["lr"] * (1 - mu) / (1 - so_far))) / root)
    param.copy_(param + (first * (-h["lr"] * mu_next / (1 - so_far * mu_next))) / root)


def _nadam_momentum(step: torch.Tensor, h: Hyper) -> torch.Tensor:
    return h["beta1"] * (1 - 0.5 * (0.96 ** (step * h["momentum_decay"])))


def _radam(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam that scales by the second moment once its variance is known (arXiv 1908.03265)."""
    grad = decayed(param, grad, h)
    step = moments(grad, state, h)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    update = first / (1 - h["beta1"] ** step) * h["lr"]
    longest = 2 / one_minus(h["beta2"]) - 1
    if isinstance(longest, torch.Tensor) or longest > 5:
        update = _rectified(update, second, step, longest, h)
    param.copy_(param - update)


def _rectified(
    update: torch.Tensor, second: torch.Tensor, step: torch.Tensor, longest: Number, h: Hyper
) -> torch.Tensor:
    correction = 1 - h["beta2"] ** step
    length = longest - 2 * step * (h["beta2"] ** step) / correction
    # What is not chosen has to be a number too: an infinity can be trapped.
    usable = length.clamp(min=5)
    excess = (usable - 4) * (usable - 2) * longest
    factor = sqrt(excess / ((longest - 4) * (longest - 2) * usable))
    adaptive = (second.sqrt() + h["eps"]).reciprocal() * sqrt(correction)
    return torch.where(length > 5, update * adaptive * factor, update)


def _asgd_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    return {
        "step": count(param),
        "eta": _number(param, values["lr"]),
        "mu": _number(param, 1.0),
        "ax": torch.zeros_like(param),
    }


def _asgd(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Averaged gradient descent (Polyak and Juditsky, 1992); the mean is in ``ax``."""
    step = counted(state)
    grad = decayed(param, grad, h)
    eta, mu, mean = state["eta"], state["mu"], state["ax"]
    rate = eta.double()
    param.copy_(axpy(param * (1 - h["lambd"] * rate), grad, rate, sign=-1))
    mean.copy_(torch.where(mu == 1, param, mean + (param - mean) * mu))
    rate = h["lr"] / (1 + h["lambd"] * h["lr"] * step) ** h["alpha"]
    eta.copy_(rate.to(eta.dtype))
    mu.copy_((step - h["t0"]).clamp(min=1).reciprocal().to(mu.dtype))


def _rprop_initial(param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
    return {
        "step": count(param),
        "prev": torch.zeros_like(param),
        "step_size": torch.full_like(param, values["lr"]),
    }


def _rprop(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Resilient backpropagation (Riedmiller and Braun, 1993); ``lr`` is where steps begin."""
    counted(state)
    before, size = state["prev"], state["step_size"]
    product = grad * before
    shrinks = product < 0
    factor = filled_where(product > 0, torch.ones_like(size), h["etaplus"])
    factor = filled_where(shrinks, factor, h["etaminus"])
    size.copy_((size * factor).clamp(min=h["step_size_min"]).clamp(max=h["step_size_max"]))
    grad = grad.masked_fill(shrinks, 0.0)
    param.copy_(param.addcmul(grad.sign(), size, value=-1))
    before.copy_(grad)


FURTHER_RULES: dict[str, Rule] = {
    "adadelta": Rule(_adadelta_initial, _adadelta),
    "adagrad": Rule(_adagrad_initial, _adagrad),
    "adamax": Rule(_adamax_initial, _adamax),
    "nadam": Rule(_nadam_initial, _nadam),
    "radam": Rule(moments_initial, _radam),
    "asgd": Rule(_asgd_initial, _asgd),
    "rprop": Rule(_rprop_initial, _rprop),
}
