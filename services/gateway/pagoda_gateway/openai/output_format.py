"""From what a body asks of its output's text to rules for it."""

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.formats import Wanted
from pagoda_gateway.text import grammars


async def format_rules(wanted: Wanted) -> grammars.Rules:
    """Return rules for the text.

    Raises:
        InvalidRequestError: names the field, and what cannot be followed.
    """
    try:
        return await _rules(wanted)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"'{wanted.param}': {error}", param=wanted.param) from error


async def _rules(wanted: Wanted) -> grammars.Rules:
    value = wanted.value
    match wanted.kind:
        case "json_object":
            return grammars.json_rules({"type": "object"})
        case "json":
            schema = grammars.parse_schema(value) if isinstance(value, str) else value
            return grammars.json_rules(schema)
        case "regex":
            return grammars.regex_rules(value)
        case "choice":
            return grammars.choice_rules(value)
    return await grammars.grammar_rules(value)
