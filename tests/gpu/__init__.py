"""What holds on a GPU, tried on the machine at hand: `python -m tests.gpu`, or `make gpu-check`."""
