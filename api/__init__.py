"""The HTTP gateway. Imports nothing of the engine: jobs are sent by name."""
