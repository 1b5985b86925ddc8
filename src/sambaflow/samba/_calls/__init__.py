"""Arguments of session calls, checked and named, and their messages."""
