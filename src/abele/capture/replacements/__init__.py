"""Replacements of torch functions that read values, for forwards that are captured."""
