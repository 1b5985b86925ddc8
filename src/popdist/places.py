"""Ranks that Slurm or MPI assigned to programs started without poprun."""

import os

from popdist._environment import Error
from popdist._run import placement
from popdist._run.command_line import Problem
from popdist._run.placement import Place

__all__ = ["Place", "this_place"]


def this_place() -> Place | None:
    """Return the rank, counts and job of Slurm or MPI; None under poprun or if alone.

    Raises:
        popdist.Error: The environment contradicts itself.
    """
    try:
        return placement.find_place(os.environ)
    except (Problem, ValueError) as problem:
        raise Error(str(problem)) from problem
