"""`python -m sessiond`: the command line. Knows only where it starts."""

from sessiond.cli import main

if __name__ == "__main__":
    main()
