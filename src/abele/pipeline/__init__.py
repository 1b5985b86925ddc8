"""Pipeline parallelism: stages of a program run micro-batches in parallel.

A training program is cut into the forward and the backward of each stage (``cut``); each part is
a program like any other and is compiled by the same targets. Stages run in threads of their own in
the order of a schedule; values pass from stage to stage in memory (``running``). ``runner`` runs
and measures them for a session.
"""

from abele.pipeline.cut import Cut, Part, Uncuttable, cut
from abele.pipeline.runner import PipelineRunner, pipelined

__all__ = ["Cut", "Part", "PipelineRunner", "Uncuttable", "cut", "pipelined"]
