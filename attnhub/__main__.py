"""``python -m attnhub``: the command line where no script was installed."""

from attnhub.cli import main

if __name__ == "__main__":
    main()
