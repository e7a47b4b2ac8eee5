"""`python -m toolgym`: the same as the `toolgym` command."""

from toolgym.cli import main

if __name__ == "__main__":
    main()
