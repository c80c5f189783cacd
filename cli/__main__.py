"""`python -m cli` is `medusaq`."""

from cli.main import main

if __name__ == "__main__":
    main()
