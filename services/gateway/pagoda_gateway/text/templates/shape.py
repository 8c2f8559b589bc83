"""What a chat template expects of messages: read from its syntax tree, before it ever renders.

Templates differ in whether content is text or a list of parts, and whether a call's arguments are
an object or text. Given the wrong one, they raise, or write Python's notation into the prompt.
"""

from dataclasses import dataclass

from jinja2 import nodes

_ID_CHARS = range(4, 65)  # who compares with less asks whether there is an id at all


@dataclass(frozen=True, slots=True)
class TemplateShape:
    """One template's expectations.

    Attributes:
        content_text: content may be text.
        content_parts: content may be a list of parts.
        arguments_text: the arguments of calls are JSON text, not an object.
        call_id_chars: how long a call's id must be; None: it is not asked for.
        thinking: reasoning is read from a message's `thinking`, as gpt-oss calls it.
    """

    content_text: bool
    content_parts: bool
    arguments_text: bool
    call_id_chars: int | None
    thinking: bool


def template_shape(tree: nodes.Template) -> TemplateShape:
    """Return what a template expects."""
    content = _Field("content", tree)
    members: list[nodes.Getattr | nodes.Getitem] = [
        *tree.find_all(nodes.Getattr),
        *tree.find_all(nodes.Getitem),
    ]
    owners = [member.node for member in members]
    parts = any(content.is_meant(loop.iter) for loop in tree.find_all(nodes.For)) or any(
        isinstance(owner, nodes.Getitem) and content.is_named(owner.node)  # content[0].type
        for owner in owners
    )
    arguments, thinking = _Field("arguments", tree), _Field("thinking", tree)
    written = [
        *(side for add in tree.find_all(nodes.Add) for side in (add.left, add.right)),
        *(side for join in tree.find_all(nodes.Concat) for side in join.nodes),
        *(side for output in tree.find_all(nodes.Output) for side in output.nodes),
    ]
    return TemplateShape(
        content_text=not parts or content.is_tested(tree, "string"),
        content_parts=parts,
        arguments_text=any(map(arguments.is_named, written))
        and not arguments.is_tested(tree, "string", "mapping"),
        call_id_chars=_call_id_chars(tree),
        thinking=any(map(thinking.is_member, [*members, *tree.find_all(nodes.Call)])),
    )


def _call_id_chars(tree: nodes.Template) -> int | None:
    """Return what a template compares an id's length with."""
    ids = [_Field(name, tree) for name in ("id", "tool_call_id")]
    for compare in tree.find_all(nodes.Compare):
        match compare:
            case nodes.Compare(
                expr=nodes.Filter(name="length" | "count") as length,
                ops=[nodes.Operand(expr=nodes.Const(value=int(num_chars)))],
            ) if num_chars in _ID_CHARS and any(field.is_meant(length) for field in ids):
                return num_chars
    return None


class _Field:
    """A message's field, and the variables that it is kept in."""

    def __init__(self, name: str, tree: nodes.Template) -> None:
        self._name = name
        self._variables = {name}
        # In the order of the text, so that a variable set from a variable is one too.
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and self.is_named(assign.node):
                self._variables.add(assign.target.name)

    def is_named(self, node: nodes.Node) -> bool:
        """Return whether an expression is the field itself."""
        match node:
            case nodes.Name():
                return node.name in self._variables
            case nodes.Getattr():
                return node.attr == self._name
            case nodes.Getitem(arg=nodes.Const() as key):
                return bool(key.value == self._name)
            case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const() as key, *_]):
                return bool(key.value == self._name)
        return False

    def is_member(self, node: nodes.Node) -> bool:
        """Return whether an expression is the field itself, and no variable."""
        return not isinstance(node, nodes.Name) and self.is_named(node)

    def is_meant(self, node: nodes.Node) -> bool:
        """Return whether an expression is the field, maybe filtered or counted by the sandbox."""
        while not self.is_named(node):
            if isinstance(node, nodes.Filter) and node.node is not None:
                node = node.node
            elif isinstance(node, nodes.Call) and node.args:
                node = node.args[0]
            else:
                return False
        return True

    def is_tested(self, tree: nodes.Template, *tests: str) -> bool:
        """Return whether the template asks if the field is one of these."""
        return any(
            test.name in tests and self.is_named(test.node) for test in tree.find_all(nodes.Test)
        )
