"""Running executables: the session owns all state that changes."""
