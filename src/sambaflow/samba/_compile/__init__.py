"""From a module to a PEF: capture, the cut into sections, and the file."""
