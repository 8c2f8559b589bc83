"""The OpenAPI document: what FastAPI cannot see of the routes.

Bodies are read and checked by `http.body` and answers are written as plain dicts, so each route
names the schemas of both here. Nothing of this runs while a request is served.
"""

from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pagoda_gateway import sse
from pagoda_gateway.admin import answers as admin_answers
from pagoda_gateway.admin import bodies as admin_bodies
from pagoda_gateway.admin import money_answers, money_bodies
from pagoda_gateway.anthropic.answers import (
    MessageAnswer,
    MessageEvent,
    MessagesError,
    TokenCount,
)
from pagoda_gateway.anthropic.schemas import CountTokensBody, MessagesBody
from pagoda_gateway.batches.schemas import (
    BatchBody,
    BatchList,
    BatchObject,
    DeletedFile,
    FileList,
    FileObject,
)
from pagoda_gateway.embeddings.schemas import EmbeddingList, EmbeddingsBody
from pagoda_gateway.http.error_shape import error_schema
from pagoda_gateway.http.middleware import OPEN_PATHS, is_administration
from pagoda_gateway.message_batches.schemas import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchLine,
    MessageBatchList,
)
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.schemas.models import ModelCard, ModelList
from pagoda_gateway.openai.schemas.moderations import Moderation, ModerationBody
from pagoda_gateway.openai.schemas.receipts import Receipt
from pagoda_gateway.openai.schemas.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    ErrorAnswer,
)
from pagoda_gateway.openai.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)
from pagoda_gateway.responses.answers import (
    ConversationAnswer,
    DeletedConversation,
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponseAnswer,
    ResponseEvent,
)
from pagoda_gateway.responses.schemas import (
    ConversationBody,
    ConversationUpdate,
    NewItemsBody,
    ResponsesBody,
)

_REF = "#/components/schemas/{model}"
_MODELS: tuple[type[BaseModel], ...] = (
    ChatBody, ChatCompletion, ChatCompletionChunk, CompletionBody, Completion, CompletionChunk,
    EmbeddingsBody, EmbeddingList,
    ModerationBody, Moderation,
    TokenizeBody, TokenizeAnswer, DetokenizeBody, DetokenizeAnswer, ModelCard, ModelList,
    Receipt, ErrorAnswer,
    MessagesBody, MessageAnswer, MessageEvent, MessagesError, CountTokensBody, TokenCount,
    MessageBatchBody, MessageBatch, MessageBatchList, DeletedMessageBatch, MessageBatchLine,
    ResponsesBody, ResponseAnswer, ResponseEvent, DeletedResponse, InputItemList, InputTokenCount,
    ConversationBody, ConversationUpdate, NewItemsBody, ConversationAnswer, DeletedConversation,
    FileObject, FileList, DeletedFile, BatchBody, BatchObject, BatchList,
)  # fmt: skip
_ADMIN_MODELS: tuple[type[BaseModel], ...] = (
    admin_bodies.NewOrganisation, admin_bodies.OrganisationChange, admin_answers.Organisation,
    admin_answers.OrganisationList,
    admin_bodies.NewTenant, admin_bodies.TenantChange, admin_answers.Tenant,
    admin_answers.TenantList,
    admin_bodies.NewKey, admin_bodies.KeyChange, admin_bodies.KeyRotation, admin_answers.Key,
    admin_answers.CreatedKey, admin_answers.KeyList,
    admin_bodies.NewTier, admin_bodies.TierChange, admin_answers.Tier, admin_answers.TierList,
    admin_answers.Deleted, admin_answers.PrefixMissList,
    money_bodies.NewPrice, money_answers.PriceObject, money_answers.PriceList,
    money_answers.BalanceList, money_answers.ReceiptList, money_answers.ChainList,
    money_answers.ChainCheckAnswer,
    admin_bodies.AdapterToLoad, admin_bodies.AdapterToUnload,
    admin_bodies.Reconcile, admin_answers.Reconciliation,
)  # fmt: skip
_KEYS: dict[str, Any] = {
    "api_key": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ADMIN_KEYS: dict[str, Any] = {"admin_key": {"type": "http", "scheme": "bearer"}}
_ERRORS = {"4XX": "The request cannot be served", "5XX": "Not now; try again"}


def described(
    answer: type[BaseModel] | None,
    *,
    body: type[BaseModel] | None = None,
    event: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """Return a route's `openapi_extra`.

    Args:
        answer: of the whole answer; None: it is text.
        body: of the request, if it has one.
        event: data of each event, if the answer can be a stream. Those of OpenAI's older APIs have
            no name, and end with an error or `[DONE]`.
    """
    content = {} if answer is None else _json(answer)
    if event is not None:
        content[sse.MEDIA_TYPE] = {"schema": _event(event)}
    extra: dict[str, Any] = {"responses": {"200": {"content": content}}} if content else {}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": _json(body)}
    return extra


class DocumentedApp(FastAPI):
    """An application whose document has our schemas, errors and keys."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return what is around the routes: ours, without the framework's own around that.

        `RequestMiddleware` answers every error. What the framework has for those that nobody has
        answered would be passed by each message of each answer.
        """
        stack: Any = super().build_middleware_stack()
        while self.user_middleware and not isinstance(stack, _kind(self.user_middleware[0])):
            stack = stack.app
        app: ASGIApp = stack
        return app

    def setup(self) -> None:
        """Serve the document, written once: the framework writes it for each that asks."""
        written = b""

        async def document(_request: Request) -> Response:
            nonlocal written
            written = written or orjson.dumps(self.openapi())
            return Response(written, media_type="application/json")

        self.add_route("/openapi.json", document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        """Return the document; made once."""
        if self.openapi_schema is None:
            _complete(super().openapi())
        assert self.openapi_schema is not None, "made above"
        return self.openapi_schema


def _kind(middleware: Middleware) -> type:
    kind = middleware.cls
    assert isinstance(kind, type), "all of ours are classes"
    return kind


def _complete(document: dict[str, Any]) -> None:
    """Add schemas, and to the routes with a key: that they need it, and how they fail."""
    models, schemes = _MODELS, _KEYS
    if any(is_administration(path) for path in document["paths"]):
        models, schemes = models + _ADMIN_MODELS, schemes | _ADMIN_KEYS
    _, definitions = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    document["components"] = {"schemas": definitions["$defs"], "securitySchemes": schemes}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            responses.pop("422", None)  # FastAPI's own; ours is a 400
            for media in responses["200"].get("content", {}).values():
                if "$ref" in media["schema"]:  # FastAPI merges what it guesses into it
                    media["schema"] = {"$ref": media["schema"]["$ref"]}
            if path not in OPEN_PATHS:
                keys = _ADMIN_KEYS if is_administration(path) else _KEYS
                operation["security"] = [{name: []} for name in keys]  # one of them
                for status, meaning in _ERRORS.items():
                    responses[status] = {
                        "description": meaning,
                        "content": _json(error_schema(path)),
                    }


def _event(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of one event of a stream, whose data is JSON text."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
    if "type" in model.model_fields:  # named by it
        data["contentSchema"] = _reference(model)
        return {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": data},
            "required": ["event", "data"],
        }
    data["contentSchema"] = {"anyOf": [_reference(model), _reference(ErrorAnswer)]}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": sse.DONE_DATA}, data]}},
        "required": ["data"],
    }


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(model)}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
