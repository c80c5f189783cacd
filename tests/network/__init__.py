"""What the system asks of a network that it was not told of."""
