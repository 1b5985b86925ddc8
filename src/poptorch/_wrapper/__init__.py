"""The wrapped model: wrapping, capturing, compiling, running and looking into it."""
