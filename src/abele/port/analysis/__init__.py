"""What a program's names stand for, what its statements read and write, and where it trains."""
