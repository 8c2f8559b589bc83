"""Draws the import graph of the whole repository into ARCHITECTURE.md, or checks that it is true.

Knows imports and the first line of each package's docstring, nothing else. Refuses circles, arrows
that the members' order forbids are import-linter's business.

    python docs/rooms.py --write ARCHITECTURE.md
    python docs/rooms.py --check ARCHITECTURE.md
"""

import argparse
import ast
import graphlib
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path

import grimp

MEMBERS = (
    "pagoda_cli", "pagoda_gateway", "pagoda_router", "pagoda_prefill", "pagoda_decode",
    "pagoda_kvstore", "pagoda_worker", "pagoda_engine", "pagoda_runtime", "pagoda_kernels",
    "pagoda_formats", "pagoda.rpc",
)  # fmt: skip
MAX_MODULES = 18
BEGIN, END = "<!-- rooms: begin, by `make docs` -->", "<!-- rooms: end -->"


def main() -> int:
    """Write or check. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=Path)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    options = parser.parse_args()
    graph = grimp.build_graph(*MEMBERS, cache_dir=None)
    problems = [*circles(graph), *crowds(graph)]
    for problem in problems:
        print(problem)
    before, _, rest = options.page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    new = f"\n{members_diagram(graph)}\n{rooms_table(graph)}\n"
    if options.write:
        options.page.write_text(f"{before}{BEGIN}{new}{END}{after}")
    elif old != new:
        problems.append("stale")
        print(f"{options.page} does not show the rooms as they are: run `make docs`")
    return 1 if problems else 0


def room_of(module: str) -> str:
    """Return the room a module lies in: its member's folder, or the member itself."""
    member = member_of(module)
    parts = module.removeprefix(member).lstrip(".").split(".")
    return f"{member}.{parts[0]}" if is_package(f"{member}.{parts[0]}") else member


def member_of(module: str) -> str:
    """Return the member a module belongs to."""
    return next(m for m in MEMBERS if module == m or module.startswith(f"{m}."))


def is_package(name: str) -> bool:
    """Tell whether a module is a folder."""
    spec = importlib.util.find_spec(name) if not name.endswith(".") else None
    return spec is not None and spec.submodule_search_locations is not None


def arrows(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Return room -> rooms it imports from, itself left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = room_of(module), room_of(imported)
            if here != there:
                found[here].add(there)
    return found


def circles(graph: grimp.ImportGraph) -> list[str]:
    """Return a line for a circle of modules and one for a circle of rooms, if there are any.

    Imports for types count. A member's own level is no room here: it ties its rooms together, and
    holds the errors and settings that they share.
    """
    modules = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    rooms = {
        room: {other for other in others if other not in MEMBERS}
        for room, others in arrows(graph).items()
        if room not in MEMBERS
    }
    problems = []
    for imports in (modules, rooms):
        try:
            graphlib.TopologicalSorter(imports).prepare()
        except graphlib.CycleError as error:
            problems.append("a circle of imports: " + " -> ".join(reversed(error.args[1])))
    return problems


def crowds(graph: grimp.ImportGraph) -> list[str]:
    """Return a line for each folder with more modules side by side than a reader can hold."""
    sizes: dict[str, int] = defaultdict(int)
    for module in graph.modules:
        if not is_package(module) and member_of(module) != "pagoda.rpc":
            sizes[module.rpartition(".")[0]] += 1
    return [
        f"{room} has {size} modules side by side; the limit is {MAX_MODULES}: make rooms"
        for room, size in sorted(sizes.items())
        if size > MAX_MODULES
    ]


def members_diagram(graph: grimp.ImportGraph) -> str:
    """Return the members and who imports whom, as Mermaid."""
    pairs = {
        (member_of(room), member_of(other))
        for room, others in arrows(graph).items()
        for other in others
        if member_of(room) != member_of(other)
    }
    lines = [f"  {short(a)} --> {short(b)}" for a, b in sorted(pairs)]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def rooms_table(graph: grimp.ImportGraph) -> str:
    """Return every room, what it is about, and what it uses, one line each."""
    found = arrows(graph)
    lines = ["| room | what it is about | uses |", "|---|---|---|"]
    for member in MEMBERS[:-1]:
        children = {m for m in graph.find_children(member) if is_package(m)}
        for room in (member, *sorted(children)):
            used = sorted(room_name(member, other) for other in found[room])
            lines.append(f"| `{room}` | {about(room)} | {', '.join(used)} |")
    return "\n".join(lines)


def room_name(member: str, other: str) -> str:
    """Return how a row names another room: its own member's name is left out."""
    inside = other.removeprefix(f"{member}.")
    return f".{inside}" if inside != other else short(other)


def short(member: str) -> str:
    """Return a name without the common prefix."""
    return member.removeprefix("pagoda_").removeprefix("pagoda.")


def about(room: str) -> str:
    """Return the first line of a package's docstring."""
    spec = importlib.util.find_spec(room)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{room} has no __init__.py to say what it is about")
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
    return text.split("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
