"""What measured results are told with, and what keeps tests from measuring."""
