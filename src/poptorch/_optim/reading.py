"""Translation of a user's optimizer object into the update rule of a program.

Only attributes are read; ``step`` and ``zero_grad`` are never called.
"""

import functools
import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from abele.step import optimizers, update_rules
from abele.step.optimizers import PAIRS, Kind
from abele.step.update_rules import FURTHER_RULES, RULES, Group, UpdateRule
from abele.storage.values import bits
from poptorch._error import error
from poptorch._logging import logger
from poptorch.enums import MeanReductionStrategy
from poptorch.options import Options

# Where classes live whose step is that of their rule; other classes have code of their own.
_LIBRARIES = ("torch.optim.", "poptorch.")

# Arguments of torch.optim objects that may change if they are not at torch's default.
_VARIABLE_IF_SET = ("weight_decay", "momentum", "dampening", "eps")


def to_update_rule(optimizer: Any, names: Mapping[int, str], *, warn: bool = False) -> UpdateRule:
    """Reduce an optimizer to what a program needs of it.

    Args:
        optimizer: of a class in ``optimizers.KINDS``, or with a ``Kind`` as its ``update_kind``.
        names: names of the model's parameters by ``id``.
        warn: log what in the optimizer is unlikely to do what its author expects.

    Raises:
        AssertionError: unsupported class, missing or non-numeric attribute.
        ValueError: amsgrad.
        poptorch.Error: another argument that no program can follow.
    """
    kind = _kind_of(optimizer)
    groups = tuple(
        _group(optimizer, kind, index, group, names)
        for index, group in enumerate(optimizer.param_groups)
    )
    if warn:
        _warn(optimizer, kind, groups)
    scaling = _number("loss_scaling", getattr(optimizer, "loss_scaling", 1.0))
    first = getattr(optimizer, "first_order_momentum_accum_type", torch.float32)
    second = getattr(optimizer, "second_order_momentum_accum_type", torch.float32)
    velocity = getattr(optimizer, "velocity_accum_type", first)
    types = {"exp_avg": first, "exp_avg_sq": second, "square_avg": second, "grad_avg": first}
    types["momentum_buffer"] = velocity
    return UpdateRule(
        kind=kind.rule,
        groups=groups,
        loss_scaling=scaling,
        loss_scaling_variable=_is_variable(optimizer, kind, "loss_scaling", scaling),
        max_grad_norm=getattr(optimizer, "max_grad_norm", math.inf),
        accumulator_dtype=getattr(optimizer, "accum_type", torch.float32),
        state_dtypes={k: v for k, v in types.items() if v is torch.float16},
    )


def _kind_of(optimizer: Any) -> Kind:
    kind = optimizers.kind_of(optimizer)
    if kind is not None:
        return kind
    reason = optimizers.why_not(optimizer)
    because = f": {reason}" if reason else ""
    raise AssertionError(
        f"Unsupported optimizer type {type(optimizer).__name__}{because}. Use SGD, Adam, AdamW, "
        f"RMSprop or LAMB of poptorch.optim, or {optimizers.names()} of torch.optim."
    )


def _warn(optimizer: Any, kind: Kind, groups: tuple[Group, ...]) -> None:
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith(_LIBRARIES):
        logger.warning(
            "Optimizer %s is a subclass of %s: its Python code does not run in a wrapped model, "
            "only its attributes are read.",
            name,
            kind.base.__name__,
        )
    has_params = any(group["params"] for group in optimizer.param_groups)
    if has_params and not any(group.params for group in groups):
        logger.warning(
            "Optimizer %s holds none of the model's parameters: nothing will be trained. Make it "
            "from model.parameters() of the model that is wrapped.",
            name,
        )
    if getattr(optimizer, "velocity_scaling", 1.0) != 1.0 and not optimizer.use_combined_accum:
        logger.warning("velocity_scaling is ignored: the accumulators are separate.")


def _group(
    optimizer: Any, kind: Kind, index: int, group: dict[str, Any], names: Mapping[int, str]
) -> Group:
    _refuse_arguments(index, group)
    values: dict[str, float] = {}
    variable = set()
    combined = getattr(optimizer, "use_combined_accum", False)
    for name in (*kind.numbers, *(["velocity_scaling"] if combined else [])):
        if name not in group:
            raise AssertionError(f"Mandatory attribute {name} not found in group {index}.")
        numbers = _numbers(name, group[name])
        if name == "velocity_scaling" and (numbers[name] == 1 or group["momentum"] != 0):
            continue  # neutral, but a number it has to be
        values |= numbers
        if _is_variable(optimizer, kind, name, group[name]):
            variable |= set(numbers)
    values |= _switches(optimizer, kind.rule, group)
    if kind.rule in ("sgd", "rmsprop") and values["momentum"] == 0:
        # Without momentum there is no buffer, and a buffer cannot appear later.
        variable.discard("momentum")
    params = tuple(names[id(p)] for p in group["params"] if id(p) in names)
    return Group(params=params, values=values, variable=frozenset(variable))


def _refuse_arguments(index: int, group: dict[str, Any]) -> None:
    if group.get("amsgrad"):
        raise ValueError("Only non-amsgrad Adam and AdamW are supported. Leave amsgrad unset.")
    refused = optimizers.refused(group)
    if refused is not None:
        name, reason = refused
        raise error(
            f"Group {index} of the optimizer has {name}={group[name]!r}, which no program can "
            f"follow: {reason} Leave {name} unset."
        )


def _switches(optimizer: Any, rule: str, group: dict[str, Any]) -> dict[str, bool]:
    values = optimizers.switches(optimizer, rule, group)
    if rule == "rmsprop":
        if len({bool(g.get("centered")) for g in optimizer.param_groups}) > 1:
            raise AssertionError("All groups must have the same value for the 'centered' attribute")
        values["tf_variant"] = bool(getattr(optimizer, "use_tf_variant", False))
    return values


def _numbers(name: str, value: Any) -> dict[str, float]:
    if name not in PAIRS:
        return {name: _number(name, value)}
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise AssertionError(f"Expected a pair of numbers for attribute {name}, found {value!r}.")
    return {part: _number(name, each) for part, each in zip(PAIRS[name], value, strict=True)}


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AssertionError(f"Expected a number for attribute {name}, found {value!r}.")
    return float(value)


def _is_variable(optimizer: Any, kind: Kind, name: str, value: Any) -> bool:
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is not None:
        return not attributes.isConstant(name)
    if name == "loss_scaling":
        return value != 1.0
    return name == "lr" or (name in _VARIABLE_IF_SET and value != _defaults(kind.base)[name])


@functools.cache
def _defaults(kind: type) -> dict[str, Any]:
    """Return the default of each argument of an optimizer's class."""
    return {name: p.default for name, p in inspect.signature(kind).parameters.items()}


_AGAIN = (
    "Wrap the model again with it: model.destroy(), then poptorch.trainingModel(model, options, "
    "optimizer)."
)
# What OneCycleLR and CyclicLR change beside the rate unless they are told otherwise.
_CYCLED = ("momentum", "beta1")
_CYCLES = (
    " If a scheduler such as OneCycleLR or CyclicLR changes it, pass cycle_momentum=False to that."
)
_VARIABLE = (
    " Numbers but a momentum of 0 can change later if the optimizer is one of poptorch.optim and "
    "optimizer.variable_attrs.markAsVariable(...) is called before compiling."
)


def replacement(old: UpdateRule, new: UpdateRule) -> UpdateRule:
    """Return ``new`` so that it can replace ``old``; raise poptorch.Error if constants differ."""
    if len(old.groups) == len(new.groups):
        new = replace(new, groups=tuple(map(_as_before, old.groups, new.groups)))
    before, after = _compiled_in(old), _compiled_in(new)
    for name in {**before, **after}:
        then, now = before.get(name, "variable"), after.get(name, "variable")
        if not _same(then, now):
            cycled = name.startswith(tuple(f"constant {each} " for each in _CYCLED))
            remedy = _CYCLES if cycled else ""
            is_number = name.startswith("constant") and not isinstance(then, bool)
            if is_number and new.kind not in FURTHER_RULES:
                remedy += _VARIABLE
            raise error(
                "The optimizer is not a valid replacement, because it changes what was compiled "
                f"in: {name}: {then} to {now}. {_AGAIN}{remedy}"
            )
    return new


def _as_before(old: Group, new: Group) -> Group:
    # A momentum that was compiled as variable may become zero; its buffer stays.
    if old.variable - new.variable == {"momentum"} and new.values.get("momentum") == 0:
        return replace(new, variable=new.variable | {"momentum"})
    return new


def _compiled_in(rule: UpdateRule) -> dict[str, Any]:
    """Return what a program contains of its optimizer, by a description."""
    known: dict[str, Any] = {
        "the optimizer's type or number of groups": f"{rule.kind} with {len(rule.groups)}",
        **{f"the parameters of group {i}": group.params for i, group in enumerate(rule.groups)},
    }
    for index, group in enumerate(rule.groups):
        constants = {n: v for n, v in group.values.items() if n not in group.variable}
        known |= {f"constant {n} of group {index}": v for n, v in constants.items()}
    if not rule.loss_scaling_variable:
        known["constant loss_scaling"] = rule.loss_scaling
    for name in ("max_grad_norm", "accumulator_dtype", "state_dtypes"):
        known[f"the optimizer's {name}"] = getattr(rule, name)
    return known


def _same(before: Any, after: Any) -> bool:
    """Return whether two constants of rules give the same bits; 0 and 0.0 do, 0.0 and -0.0 not."""
    if isinstance(before, int | float) and isinstance(after, int | float):
        return bits(float(before)) == bits(float(after))
    return before == after


def choose_reduction(options: Options, optimizer: Any, compiled: UpdateRule | None) -> None:
    """Half accumulators of their own need a running mean: the wrapper's options say so.

    Args:
        options: the wrapper's own frozen copy, changed in place.
        optimizer: about to be used.
        compiled: the rule that was compiled; None before that.

    Raises:
        ValueError: half accumulators are asked for after compiling without them.
    """
    half_accumulators = getattr(optimizer, "accum_type", None) is torch.float16
    if not half_accumulators or getattr(optimizer, "use_combined_accum", False):
        return
    if compiled is not None:
        if compiled.accumulator_dtype is not torch.float16:
            raise ValueError(
                "float16 accum_type cannot be set now: the model is already compiled with "
                f"accumulators of {compiled.accumulator_dtype}. Pass accum_type to the optimizer "
                "the model is wrapped with."
            )
        return
    options._unfreeze()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(
        MeanReductionStrategy.Running
    )
    options._freeze()


class AttributeWatch:
    """Logs attributes that an optimizer did not have at first, if ``relaxed`` at debug level."""

    def __init__(self, *, relaxed: bool):
        self._log = logger.debug if relaxed else logger.warning
        self._kind: type | None = None
        self._known: set[tuple[str, str]] = set()

    def look(self, optimizer: Any) -> None:
        """Log each new attribute once."""
        attributes = {("optimizer", name) for name in settings(optimizer)}
        for index, group in enumerate(optimizer.param_groups):
            attributes |= {(f"optimizer group {index}", name) for name in group}
        if type(optimizer) is not self._kind:
            self._kind, self._known = type(optimizer), attributes
        for owner, name in sorted(attributes - self._known):
            self._log("Ignoring unexpected %s attribute %s", owner, name)
        self._known |= attributes


def settings(optimizer: Any) -> list[str]:
    """Return the names of an optimizer's attributes that are neither private nor callable."""
    own = vars(optimizer).items()
    return [name for name, value in own if not name.startswith("_") and not callable(value)]


def host_step(optimizer: Any) -> None:
    """Update parameters on the host by the rule that a program would use."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): str(index) for index, p in enumerate(params)}
    rule = to_update_rule(optimizer, names)
    by_name = {str(index): p for index, p in enumerate(params) if p.grad is not None}
    for group in rule.groups:
        for name in group.params:
            param = by_name.get(name)
            if param is not None and not optimizer.state[param]:
                optimizer.state[param].update(RULES[rule.kind].initial(param, group.values))
    update_rules.apply(
        rule,
        by_name,
        {name: p.grad for name, p in by_name.items()},
        {name: optimizer.state[p] for name, p in by_name.items()},
        {k: torch.tensor(v, dtype=torch.float64) for k, v in rule.hyper().items()},
    )
