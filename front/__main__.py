"""The `toolgym` command, and `python -m toolgym`."""

from __future__ import annotations

import sys

from toolgym.tools.lazy import missing_extra


def main() -> None:
    """Run the command line, or say what it needs. Exit status as in `toolgym.cli.app`."""
    try:
        from toolgym.cli.app import main as run
    except ImportError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(f"error: {missing_extra('cli', 'The toolgym command', error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # while it loads
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
