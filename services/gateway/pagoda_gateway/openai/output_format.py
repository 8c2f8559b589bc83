"""From what a body asks of its output's text to rules for it."""

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.formats import Wanted
from pagoda_gateway.text import grammars
from pagoda_gateway.text.grammar_checker import Source


async def format_source(wanted: Wanted) -> Source:
    """Return rules for the text.

    Raises:
        InvalidRequestError: names the field, and what cannot be followed.
    """
    try:
        return await _source(wanted)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"'{wanted.param}': {error}", param=wanted.param) from error


async def _source(wanted: Wanted) -> Source:
    param, value = wanted.param, wanted.value
    match wanted.kind:
        case "json_object" | "json":
            schema = {"type": "object"} if wanted.kind == "json_object" else value
            if isinstance(schema, str):
                schema = grammars.parse_schema(schema)
            return Source(param, grammars.json_rules(schema), schema=schema)
        case "regex":
            return Source(param, grammars.regex_rules(value))
        case "choice":
            return Source(param, grammars.choice_rules(value))
    return Source(param, await grammars.grammar_rules(value))
