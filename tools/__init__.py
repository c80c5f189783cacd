"""Scripts that the Makefile runs before medusaq is installed."""
