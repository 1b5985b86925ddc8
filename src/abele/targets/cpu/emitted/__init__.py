"""Execution of a program as one generated C++ file without torch headers."""
