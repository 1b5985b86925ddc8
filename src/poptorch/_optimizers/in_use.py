"""The optimizer of one wrapper: its rule, its values on the device, and its state there."""

from collections.abc import Callable
from typing import Any

from abele.capture import gradient_hooks
from abele.step.update_rules import UpdateRule
from abele.storage.values import bits
from abele.trace.module_state import parameter_names
from poptorch._compiled import translate
from poptorch._compiled.wrapped import WrappedModel
from poptorch._error import error
from poptorch._logging import logger
from poptorch._optimizers import reading
from poptorch._optimizers.device_state import DeviceState


class OptimizerInUse:
    """Optimizer of a wrapper; that of an inference wrapper has no rule.

    Args:
        model: the wrapped model.
        rule: the rule of a model out of a file, whose optimizer object is not there.

    Attributes:
        rule: what the optimizer was reduced to; None without one.
        state: the optimizer's state on the device.
        restored: the values that a kept state has put on the device, where they are not the rule's.
        times_set: how often an optimizer was set.
        changed: told that values were set.
    """

    def __init__(self, model: WrappedModel, rule: UpdateRule | None = None):
        self._model, self.rule = model, rule
        self._watch = reading.AttributeWatch(relaxed=model.options._relax_optimizer_checks)
        self.state = DeviceState()
        self.restored: dict[str, float] | None = None
        self.times_set = 0
        self.changed: Callable[[], None] = lambda: None
        self._rate: Any = None  # of the first group, when it was sent last
        self._rate_is_watched = True  # until it was warned of

    def use(self, optimizer: Any) -> None:
        """Send an optimizer's values to the device, or keep them for compiling.

        Args:
            optimizer: the one in use, or another of the same class and number of groups.

        Raises:
            poptorch.Error: a value that was compiled in has changed.
            AssertionError: unsupported optimizer class.
            ValueError: half accumulators are asked for after compiling without them.
        """
        model = self._model
        compiled_rule = None if model.compiled is None else self.rule
        reading.choose_reduction(model.options, optimizer, compiled_rule)
        if model.compiled is None:
            model.read_options()
        self.rule = self._rule_of(optimizer)
        self.times_set += 1
        self.state.use(optimizer, self.rule, parameter_names(model.module))
        self._rate = optimizer.param_groups[0].get("lr")
        self.refuse_hooks()
        self.changed()

    def warn_of_unsent_rate(self) -> None:
        """Says once that the host's learning rate is no longer the one that the device has.

        Called at every training step, so that it looks at the first group only.
        """
        optimizer = self.state.in_use
        if not self._rate_is_watched or optimizer is None:
            return
        rate = optimizer.param_groups[0].get("lr")
        if rate is self._rate or rate == self._rate:
            return
        self._rate_is_watched = False
        logger.warning(
            "The optimizer's learning rate is now %s, and the device still computes with %s: it "
            "gets new values by setOptimizer(optimizer) only. Call it after each change, such as "
            "scheduler.step().",
            rate,
            self._rate,
        )

    def refuse_hooks(self) -> None:
        """Refuses hooks around the step of the optimizer, which would not run.

        Raises:
            poptorch.Error: there is one.
        """
        optimizer = self.state.in_use
        refused = None if optimizer is None else gradient_hooks.refused_around_step(optimizer)
        if refused is not None:
            raise error(refused)

    def take_loaded_values(self) -> None:
        """Has the groups of a loaded state dictionary count without another ``setOptimizer``."""
        if self.state.reread:
            self.use(self.state.in_use)

    def send_loaded_state(self) -> None:
        """Send state that was loaded on the host to the device, if any."""
        if self.state.reread:
            self.take_loaded_values()
            rule = self.rule
            if rule is not None and rule.automatic_scaling is not None:
                # The device has moved on from the scale that the rule was set to.
                self._model.session.set_hyper("loss_scaling", rule.loss_scaling)
        if self.state.pending:
            self.state.write()

    def values(self) -> dict[str, float]:
        """Return the values that were set last; empty without an optimizer."""
        if self.restored is not None:
            return self.restored
        return {} if self.rule is None else self.rule.hyper()

    def restore_values(self, values: dict[str, float], *, was_set: bool) -> None:
        """Adopt the values that a restored state has put on the device.

        Args:
            values: by name.
            was_set: an optimizer was set since the state was put back; its values win.
        """
        self.restored, self.state.pending = values, False
        if was_set and self.rule is not None:
            self.restored = None
            self._send_changes(values, self.rule)
        self.changed()

    def _rule_of(self, optimizer: Any) -> UpdateRule:
        model = self._model
        names = parameter_names(model.module)
        rule = reading.to_update_rule(optimizer, names, warn=self.rule is None)
        rule = translate.with_automatic_scaling(rule, optimizer, model.options)
        self._watch.look(optimizer)
        # The device steps, unseen by torch's schedulers, which would warn of a missing step().
        optimizer._opt_called = True
        if self.rule is None or model.compiled is None:
            return rule
        rule = reading.replacement(self.rule, rule)
        before = self.values()
        self.restored = None
        self._send_changes(before, rule)
        return rule

    def _send_changes(self, before: dict[str, float], rule: UpdateRule) -> None:
        for name, value in rule.hyper().items():
            if bits(value) != bits(before.get(name)):
                self._model.session.set_hyper(name, value)
