"""Files: written atomically, checked when read, never unpickled."""
