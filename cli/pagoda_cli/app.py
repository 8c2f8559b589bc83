"""The `pagoda` command. Imports its commands where Ctrl-C is caught: that takes half a second."""

import sys

from pagoda_cli.errors import CommandError

WRONG_USE, INTERRUPTED = 2, 130
"""What typer says of wrong flags, and a shell of a command that Ctrl-C has ended."""


def main() -> None:
    """Run the command line."""
    try:
        from pagoda_cli.commands import make_app

        make_app(sys.argv[1:])()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pagoda_"):
            raise
        sys.exit(f"pagoda: {error.name} is not installed: `pip install 'pagoda-cli[up]'`")
    except CommandError as error:
        print(f"pagoda: {error}", file=sys.stderr)
        sys.exit(WRONG_USE)
    except KeyboardInterrupt:  # before the command has begun, and so nothing else
        sys.exit(INTERRUPTED)
