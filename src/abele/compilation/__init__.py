"""Compilation of captured programs to an executable, the executable cache and executable files."""
