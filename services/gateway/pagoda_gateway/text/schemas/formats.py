"""Formats that llguidance takes too widely, made exact by rules beside them.

It has a 29th of February in every year and a 61st second in every minute, and host names of any
length.
"""

from typing import Any

from pagoda_gateway.text.schemas.parts import schemas_in

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = [
    {"pattern": f"^(?:.{{5}}(?:0[13-9]|1|02-(?:[01]|2[0-8]))|{_LEAP_YEAR}-02-29)"},
    {"pattern": "^0{0,3}[1-9]"},  # Python, as many others, has no year 0
]
_RULES: dict[str, list[dict[str, Any]]] = {
    "date": _DATE,
    "date-time": [*_DATE, {"pattern": "^.{17}[0-5]"}],
    "time": [{"pattern": "^.{6}[0-5]"}],
    "hostname": [{"maxLength": 253}],
}


def make_formats_exact(schema: dict[str, Any]) -> None:
    """Add what the formats of a checked schema lack to its `allOf`, in place."""
    for _, part in schemas_in(schema).values():
        rules = _RULES.get(part.get("format", ""))
        if rules:
            part["allOf"] = [*part.get("allOf", ()), *rules]
