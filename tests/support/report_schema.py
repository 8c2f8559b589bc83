"""A JSON schema for answers of any model: choices, a bounded number, a list of short texts."""

from typing import Any

REPORT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["merry", "grave"]},
        "losses": {"type": "integer", "minimum": 0, "maximum": 9999},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["mood", "losses", "names"],
    "additionalProperties": False,
}
