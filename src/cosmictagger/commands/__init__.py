"""The sub-commands of ``cosmictagger``, one per file, and its help."""
