"""What became of the work and of the memory: the verdict, and the table that it is told in."""
