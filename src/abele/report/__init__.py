"""The report of a run: program, resources, progress and outcome.

A run leaves two files: ``run.json``, which says what runs (``record``), and ``journal.jsonl``, to
which lines are added while it runs (``journal``). A page is a function of these two and of nothing
else, so one can be made after any ending. ``facts`` reads the first off a session, ``recorder``
writes both, ``page`` makes the page, ``comparison`` says how two runs differ.
"""

from abele.report.journal import Journal, JournalWriter, read_journal
from abele.report.record import Run, only_run, read_run

__all__ = ["Journal", "JournalWriter", "Run", "only_run", "read_journal", "read_run"]
