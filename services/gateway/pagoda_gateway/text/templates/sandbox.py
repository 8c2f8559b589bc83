"""A Jinja sandbox that ends: every loop and call spends from a budget, and so does what it writes.

A template comes with a model, from somebody else, and what it does to a client's messages may take
time that grows faster than they do. What a single filter, `~` or `+` makes has no bound: who serves
a model trusts its folder not to double texts in a loop. Knows no chat.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 2_000_000
MAX_SECONDS = 10.0
MAX_TEXT_CHARS = 32 << 20
_STEPS_PER_LOOK = 1024  # at the clock
_LOOP = "pagoda_loop"


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._deadline = time.monotonic() + MAX_SECONDS

    def spend(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise jinja2.TemplateRuntimeError(f"more than {MAX_STEPS} loop steps and calls")
        if self._steps % _STEPS_PER_LOOK == 0 and time.monotonic() > self._deadline:
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_SECONDS:g} s")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """Renders within `budgeted` only."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals[_LOOP] = _counted

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _Counting().visit(tree)  # type: ignore[no-any-return]

    def call(self, /, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Count every call; refuse numbers that would be widths of far too much text."""
        if obj is not _counted:
            _budget.get().spend()
            if any(isinstance(a, int) and a > MAX_TEXT_CHARS for a in args):
                raise jinja2.TemplateRuntimeError(f"an argument is over {MAX_TEXT_CHARS}")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations whose result is out of proportion."""
        for text, count in ((left, right), (right, left)):
            if operator == "*" and isinstance(count, int) and isinstance(text, str | list | tuple):
                size = len(text) * count
                if size > MAX_TEXT_CHARS:
                    raise jinja2.TemplateRuntimeError(f"{size} items in one operation")
        if operator == "**" and not (abs(left) < 1000 and abs(right) < 100):
            raise jinja2.TemplateRuntimeError("a power of numbers that are too large")
        if operator == "%" and isinstance(left, str) and any(map(str.isdigit, left)):
            raise jinja2.TemplateRuntimeError("a width in a format")
        return super().call_binop(context, operator, left, right)


@contextlib.contextmanager
def budgeted() -> Iterator[None]:
    """Give what is rendered inside a budget of its own."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _counted(items: Iterable[Any]) -> Iterable[Any]:
    """Return `items`, each step spending from the budget."""
    budget = _budget.get()
    for item in items:
        budget.spend()
        yield item


class _Counting(NodeTransformer):
    """Wraps what each loop runs over."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Call(nodes.Name(_LOOP, "load"), [node.iter], [], None, None).set_lineno(
            node.lineno
        )
        return node
