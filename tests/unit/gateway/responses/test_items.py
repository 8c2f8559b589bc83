"""Events of items, when one piece of text brings an item's beginning and more of it."""

from pagoda_gateway.dialects import BlockReader
from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.responses.items import ItemForm, item_events

ARGUMENTS = '{"city": "Rome"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def test_arguments_of_a_call_come_once() -> None:
    parser = Dialect.of("<tool_call>").parser([Tool("weather")])
    events = [
        event
        for change in BlockReader(parser, lambda: "call_1").read(CALL, is_last=True)
        for event in item_events(
            change, "id", "completed" if change.kind == "end" else "in_progress", form=ItemForm({})
        )
    ]
    assert events[0]["type"] == "response.output_item.added"
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert events[0]["item"]["arguments"] + "".join(deltas) == ARGUMENTS
    assert events[-1]["item"]["arguments"] == ARGUMENTS
