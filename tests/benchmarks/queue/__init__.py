"""What the queue around the engine costs, and how batches and interactive jobs share it."""
