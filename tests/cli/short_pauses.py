"""`medusaq` with short pauses before a restart: `python -m tests.cli.short_pauses up`."""

from cli import restarts

restarts.PAUSE_FIRST_S = 0.2
restarts.PAUSE_MAX_S = 1.6

if __name__ == "__main__":
    from cli.main import main

    main()
