"""Who works with the stack: clients that repeat and follow, the load that they make, and receivers."""
