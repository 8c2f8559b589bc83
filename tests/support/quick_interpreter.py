"""Triton's interpreter, without what it does again and again, or for nothing.

What it replaces in triton.language is looked up once, not at every launch and every call that one
function of a kernel makes to another. The parts of a type are made once for each shape. And it
asks of no sum whether 32 bits hold it: it would compute all in 64 as well and then, as nobody
debugs, drop the answer. Together these are half of its time and more.
"""

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton import language
from triton.language.core import is_builtin
from triton.runtime import interpreter


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Have the interpreter waste nothing while the context lasts."""
    options = interpreter.interpreter_builder.options
    assert not options.debug, "asserts of kernels, and of sums that overflow, are dropped"
    unasked = dataclasses.replace(options, sanitize_overflow=False)
    with (
        patch.object(interpreter.interpreter_builder, "options", unasked),
        patch.object(interpreter, "_get_np_dtype", _remembered_dtypes()),
        patch.object(language.block_type, "__init__", _remembered_blocks()),
        patch.object(language.tensor, "__init__", _remembered_shapes()),
        patch.object(interpreter, "_patch_builtin", _remembered_builtins()),
        patch.object(interpreter, "_patch_lang", _patched_once()),
    ):
        yield


def _remembered_dtypes() -> Any:
    """Know numpy's type of each element type by its name."""
    find, found = interpreter._get_np_dtype, dict[str, Any]()

    def get(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in found:
            found[name] = find(dtype)
        return found[name]

    return get


def _remembered_blocks() -> Any:
    """Check each shape of a block once, and write its name."""
    make, made = language.block_type.__init__, dict[Any, Any]()

    def initialise(self: Any, element: Any, shape: Any) -> None:
        key = tuple(shape)
        if key in made:
            self.shape, self.numel, name = made[key]
            self.element_ty, self.name = element, f"<{name}, {element}>"
        else:
            make(self, element, shape)
            made[key] = self.shape, self.numel, str(self.shape)

    return initialise


def _remembered_shapes() -> Any:
    """Wrap the numbers of each tensor's shape once."""
    make, made = language.tensor.__init__, dict[Any, Any]()

    def initialise(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key in made:
            self.shape, self.numel = made[key]
            self.handle, self.type, self.dtype = handle, type, type.scalar
        else:
            make(self, handle, type)
            made[key] = self.shape, self.numel

    return initialise


def _remembered_builtins() -> Any:
    """Know which members of a module or class are builtins."""
    builtins = dict[Any, list[str]]()

    def replace(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in builtins:
            members = inspect.getmembers(owner)
            builtins[owner] = [name for name, member in members if is_builtin(member)]
        names = builtins[owner]
        if names and is_builtin(getattr(owner, names[0])):  # else all are replaced already
            for name in names:
                interpreter._patch_attr(owner, name, getattr(owner, name), builder, scope)

    return replace


def _patched_once() -> Any:
    """Replace nothing again for a function that is called within a launch."""
    replace, modules_of = interpreter._patch_lang, dict[Any, list[Any]]()

    def replace_unless_done(function: Any) -> Any:
        if function not in modules_of:
            modules = (each for each in function.__globals__.values() if inspect.ismodule(each))
            modules_of[function] = [each for each in modules if each in (language, language.core)]
        if any(is_builtin(module.load) for module in (language, *modules_of[function])):
            return replace(function)
        return interpreter._LangPatchScope()

    return replace_unless_done
