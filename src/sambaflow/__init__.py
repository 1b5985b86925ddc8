"""The small part of SambaFlow's interface that programs use, on the engine ``abele``."""
