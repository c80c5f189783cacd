"""What drafts cost and gain, each measured by a program of its own."""
