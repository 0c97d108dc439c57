"""`python -m ir` is the command `ir`."""

from ir.cli import main

if __name__ == "__main__":
    main()
