"""The `pagoda` command. Imports its commands where Ctrl-C is caught: that takes half a second."""

import errno
import os
import sys

from pagoda_cli.errors import CommandError

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
"""The latter are what typer says of wrong flags, and a shell of a command that Ctrl-C has ended."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pagoda_"):
            raise
        sys.exit(f"pagoda: {error.name} is not installed: `pip install 'pagoda-cli[up]'`")
    except CommandError as error:
        print(f"pagoda: {error}", file=sys.stderr)
        sys.exit(WRONG_USE)
    except UnicodeEncodeError as error:  # bytes of the command line stand in text as halves of it
        print(f"pagoda: {error.object!a} is not UTF-8", file=sys.stderr)
        sys.exit(WRONG_USE)
    except UnicodeError as error:
        print(f"pagoda: no host has such a name: {error}", file=sys.stderr)
        sys.exit(WRONG_USE)
    except TypeError as error:
        if "surrogates" not in str(error):  # of orjson, which knows no name for it
            raise
        print("pagoda: what was given is not UTF-8", file=sys.stderr)
        sys.exit(WRONG_USE)
    except BrokenPipeError:  # who reads our output has seen enough
        _forget_output()
        sys.exit(FAILED)
    except OSError as error:
        if error.filename is not None:
            print(f"pagoda: {error.strerror}: {error.filename}", file=sys.stderr)
            sys.exit(FAILED)
        if error.errno not in _FULL:
            raise
        _forget_output()
        print(f"pagoda: cannot write: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:  # before the command has begun, and so nothing else
        sys.exit(INTERRUPTED)


def _run() -> None:
    from pagoda_cli.commands import make_app

    try:
        make_app(sys.argv[1:])()
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def _forget_output() -> None:
    """Have what is still in stdout's buffer written nowhere: Python writes it as it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
