"""Running a program operator by operator, with torch's library kernels and our own."""
