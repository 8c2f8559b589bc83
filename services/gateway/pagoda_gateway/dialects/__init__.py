"""How model families write reasoning and tool calls, as text; parsers of it, and grammars for it.

Knows no HTTP, no OpenAI bodies and no tokenizer. One module of `families` for each.
"""

from pagoda_gateway.dialects.blocks import Block, BlockChange, BlockReader
from pagoda_gateway.dialects.call_ids import fitting_call_id, new_call_id
from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import (
    CallArguments,
    CallStart,
    ContentText,
    OutputParser,
    Part,
    ReasoningText,
    are_whole,
    read_parts,
)
from pagoda_gateway.dialects.stream_parser import ContentParser

__all__ = [
    "Block",
    "BlockChange",
    "BlockReader",
    "CallArguments",
    "CallStart",
    "Calls",
    "ContentParser",
    "ContentText",
    "Dialect",
    "OutputParser",
    "Part",
    "ReasoningText",
    "Tool",
    "are_whole",
    "fitting_call_id",
    "new_call_id",
    "read_parts",
]
