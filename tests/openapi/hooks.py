"""What generated requests need to get past the door: names of things that are there, few fields."""

import os
import zlib
from typing import Any

import schemathesis

MODEL = os.environ["PAGODA_MODEL_NAME"]
MAX_TOKENS = 4  # where a body says nothing: answers are short, and so is the test
ESSENTIAL = ("model", "messages", "prompt", "input", "max_tokens", "stream")


@schemathesis.hook
def before_call(
    _context: schemathesis.HookContext, case: schemathesis.Case, _kwargs: dict[str, Any]
) -> None:
    """Name the model that is served, where a model is named: any other is a 404."""
    if "model_id" in (case.path_parameters or {}):
        case.path_parameters["model_id"] = MODEL
    if isinstance(case.body, dict) and isinstance(case.body.get("requests"), list):
        for request in case.body["requests"]:
            if isinstance(request, dict) and isinstance(request.get("params"), dict):
                request["params"]["model"] = MODEL
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        limit = "max_output_tokens" if "responses" in case.path else "max_tokens"
        case.body = {**_thinned(case.body), "model": MODEL}
        if case.body.get(limit) is None:
            case.body[limit] = MAX_TOKENS


def _thinned(body: dict[str, Any]) -> dict[str, Any]:
    """Return few fields of every other body: among two dozen, one is always refused."""
    number = zlib.crc32(repr(body).encode("utf-8", "backslashreplace"))
    if number % 2:
        return body
    more = sorted(body)[number % len(body)]
    return {name: body[name] for name in body if name in (*ESSENTIAL, more)}
