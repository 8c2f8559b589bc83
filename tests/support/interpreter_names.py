"""What Triton's interpreter replaces in triton.language, looked up once.

It looks through all of the language's names at every launch, and again at every call that one
function of a kernel makes to another: two fifths of what interpreted kernels take.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.language.core import is_builtin
from triton.runtime import interpreter


@contextmanager
def names_looked_up_once() -> Iterator[None]:
    """Remember which members of a module or class are builtins, while the context lasts."""
    builtins: dict[Any, list[str]] = {}

    def replace(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in builtins:
            members = inspect.getmembers(owner)
            builtins[owner] = [name for name, member in members if is_builtin(member)]
        names = builtins[owner]
        if names and is_builtin(getattr(owner, names[0])):  # else all are replaced already
            for name in names:
                interpreter._patch_attr(owner, name, getattr(owner, name), builder, scope)

    with patch.object(interpreter, "_patch_builtin", replace):
        yield
