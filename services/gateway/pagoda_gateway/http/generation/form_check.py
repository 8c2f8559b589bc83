"""What a wrong request has wrong besides: no such model, a schema or a grammar nothing can follow.

Looks at the model and the fields that bind an answer, as far as they are right by themselves,
whatever is wrong with the others. Knows no grammar: the model's processor compiles it, off the
event loop, within its limits of time.
"""

from collections.abc import Mapping
from typing import Any, Generic

from pydantic import ValidationError

from pagoda_gateway.errors import ContentPolicyError, GatewayError, InvalidRequestError, joined
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.caller import Caller
from pagoda_gateway.openai.endpoint import Endpoint, Sent
from pagoda_gateway.openai.request_processor import Body
from pagoda_gateway.openai.sampling.beam_search import check_grammar
from pagoda_gateway.openai.schemas import formats

_BINDING = frozenset((*formats.FIELDS, "tools", "text", "output_config"))
_BESIDE = frozenset(
    ("model", "tool_choice", "parallel_tool_calls", "ignore_eos", "use_beam_search")
)
_REQUIRED = {
    "messages": [{"role": "user", "content": "x"}],
    "prompt": "x",
    "input": "x",
    "max_tokens": 1,
}
"""What stands in for a field that a body must have, and that may be what is wrong with it."""


class FormCheck(Generic[Sent, Body]):
    """Names what is wrong with model and form of an answer beside an error of the other fields."""

    def __init__(
        self, gateway: Gateway, endpoint: Endpoint[Sent, Body], limits: Mapping[str, int]
    ) -> None:
        self._gateway = gateway
        self._endpoint = endpoint
        self._limits = limits
        self._looked_at = (_BINDING | _BESIDE) & endpoint.schema.model_fields.keys()

    def part_of(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a body that `named_with` needs."""
        return {name: value[name] for name in value.keys() & self._looked_at}

    async def named_with(
        self, error: InvalidRequestError, part: dict[str, Any], caller: Caller
    ) -> InvalidRequestError:
        """Return the error of a body, with what else is wrong with this part of it.

        No such model is a 404 alone, and one more of the 400's problems beside others.
        """
        if error.status != 400 or isinstance(error, ContentPolicyError):
            return error
        body = await self._body(part, caller.key.tenant)
        if body is None:
            return error
        try:
            model = self._gateway.model_of(caller.key, body.model)
            processor = self._endpoint.processors[model.name]
            form = await processor.form(body, "", caller.key.tenant)
            check_grammar(form.grammar, processor.options(body))
        except InvalidRequestError as other:
            return joined([error, other])
        except GatewayError:  # nobody has the time now, or the model is not for this key
            pass
        return error

    async def _body(self, part: dict[str, Any], tenant: str) -> Body | None:
        """Return a body with what is right of a part; None: nothing can be made of it."""
        schema, fields = self._endpoint.schema, dict(part)
        for name, info in schema.model_fields.items():
            if info.is_required() and name in _REQUIRED:
                fields[name] = _REQUIRED[name]
        try:
            sent = self._right_part(schema, fields)
            return None if sent is None else (await self._endpoint.translate(sent, tenant)).body
        except InvalidRequestError:
            return None

    def _right_part(self, schema: type[Sent], fields: dict[str, Any]) -> Sent | None:
        for _ in range(3):  # what is wrong goes, and then what is wrong without it
            try:
                return schema.model_validate(fields, context=self._limits)
            except ValidationError as error:
                for field in _roots(error):
                    fields.pop(field, None)
        return None


def _roots(error: ValidationError) -> set[str]:
    """Return the names of a body's fields that are wrong."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return {str(problem["loc"][0]) for problem in problems if problem["loc"]}
