"""What programs say inside forward about placement and memory, and what capture makes of it."""
