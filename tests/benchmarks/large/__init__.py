"""Models of larger shapes: what they cost here, and what heads would gain on a GPU."""
