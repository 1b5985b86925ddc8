"""The report of a run: records program, resources, progress and outcome, and renders a page.

A run writes two files: ``run.json``, which describes the programs (``record``), and
``journal.jsonl``, to which lines are appended during the run (``journal``). A page depends only on
these files, so one can be rendered after any ending. ``facts`` collects the record from a session,
``recorder`` writes both files, ``page`` renders the page, ``comparison`` compares two runs.
"""

from abele.report.journal import Journal, JournalWriter, read_journal
from abele.report.record import Run, only_run, read_run

__all__ = ["Journal", "JournalWriter", "Run", "only_run", "read_journal", "read_run"]
