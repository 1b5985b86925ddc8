"""Execution of compiled programs: sessions, which own all mutable state of a model."""
