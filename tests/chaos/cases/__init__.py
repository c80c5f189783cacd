"""The cases: which faults are put in, when, and what must have recovered after each."""
