"""`python -m busbw` is the command `busbw`."""

from busbw.cli import main

if __name__ == "__main__":
    main()
