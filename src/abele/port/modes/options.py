"""Writes the options of the new mode's programs, which are made when they are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from abele.port.finding import Verdict
from abele.port.source import Source

if TYPE_CHECKING:
    from abele.port.modes.context import ModeContext

_ALONE = '''@functools.cache
def {name}():
    """Options of the programs in mode {mode}."""
    return poptorch.Options()
'''
#: Instances shuffle alike only with a common seed.
_INSTANCES = '''@functools.cache
def {name}():
    """Options of the programs in mode {mode}: of one instance, where poprun has started several."""
    if not popdist.isPopdistEnvSet():
        return poptorch.Options()
    popdist.init()
    if popdist.getInstanceIndex() == 0:
        logging.info("local replicas: %d", popdist.getNumLocalReplicas())
    options = popdist.poptorch.Options()
    options.randomSeed(42)
    return options
'''


def options(context: ModeContext, source: Source) -> str:
    """The expression of a file's options, with the function that makes them.

    Args:
        context: the program.
        source: the file.
    """
    edits = context.edits(source)
    mode = context.modes.new
    known = context.name(source, f"{mode.lower()}_options")
    edits.need("import functools")
    edits.need("import poptorch")
    if context.distributed:
        edits.need("import logging")
        edits.need("import popdist")
        edits.need("import popdist.poptorch")
        reason = "poprun says how many replicas there are; all instances share a seed"
        context.say(source, source.module.body[0], "ABP808", Verdict.MODIFIED, reason)
    text = _INSTANCES if context.distributed else _ALONE
    edits.define_function(text.format(name=known, mode=mode))
    return f"{known}()"
