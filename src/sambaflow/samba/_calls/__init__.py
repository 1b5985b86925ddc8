"""What the calls of a session bring, checked and named, and what they print."""
