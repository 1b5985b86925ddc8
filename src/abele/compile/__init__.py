"""From programs to an executable: passes and compiler, the cache, and the files between them."""
