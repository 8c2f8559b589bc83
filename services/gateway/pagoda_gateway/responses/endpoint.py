"""POST /v1/responses: OpenAI's newer way to ask for a chat, and what is kept of the answers."""

from collections.abc import Coroutine, Mapping
from typing import Any, Literal

from pagoda_gateway.errors import (
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    shorten,
)
from pagoda_gateway.openai.chat import ChatProcessor
from pagoda_gateway.openai.endpoint import Endpoint, Translated
from pagoda_gateway.openai.request_processor import ProcessedRequest
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.tools import function_tool, tool_use
from pagoda_gateway.responses.background import BackgroundResponses
from pagoda_gateway.responses.conversation import chat_messages, input_items
from pagoda_gateway.responses.input_items import item_page, with_ids
from pagoda_gateway.responses.items import without_logprobs
from pagoda_gateway.responses.schemas import AS_IN_CHAT, FunctionTool, ResponsesBody, TextFormat
from pagoda_gateway.responses.serializer import ResponseSerializer, failed
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.tenant_values import TenantValues

RETRY_AFTER_SECONDS = 1.0


class _Chat(ChatBody):
    truncation: str | None = None

    @property
    def drops_turns(self) -> bool:
        """Whether a conversation that is too long goes without its oldest turns."""
        return self.truncation == "auto"

    @property
    def prompt_field(self) -> str:
        """Name of the field that has the prompt."""
        return "input"

    @property
    def max_tokens_field(self) -> str:
        """Name of the field that bounds the output."""
        return "max_output_tokens"

    @property
    def schema_field(self) -> str:
        """Name of the field that has the schema of the text."""
        return "text.format.schema"


class ResponsesEndpoint(Endpoint[ResponsesBody, ChatBody]):
    """Responses in front of chat."""

    name = "responses"
    operation = "chat"
    object_id_prefix = "resp_"
    schema = ResponsesBody

    def __init__(self, chats: Mapping[str, ChatProcessor], store: TenantValues) -> None:
        super().__init__(chats)
        self._chats = chats
        self._store = store
        self.background = BackgroundResponses()

    def translate(self, sent: ResponsesBody, tenant: str) -> Translated[ChatBody]:
        """Return the chat that the body asks for, after the conversation that it goes on with."""
        previous = self._previous(tenant, sent.previous_response_id)
        items = [*previous, *input_items(sent.input)]
        body = _Chat.model_construct(
            model=sent.model,
            messages=chat_messages(sent.instructions, items, num_previous=len(previous)),
            max_tokens=sent.max_output_tokens,
            stream=sent.stream,
            stream_options=sent.stream_options,
            tools=[_function(tool) for tool in sent.tools] if sent.tools else None,
            tool_choice=_tool_choice(sent.tool_choice),
            response_format=_response_format(sent.text.format if sent.text else None),
            reasoning_effort=_effort(sent.reasoning),
            truncation=sent.truncation,
            logprobs=sent.num_logprobs is not None,
            top_logprobs=sent.num_logprobs,
            **{name: getattr(sent, name) for name in AS_IN_CHAT},
        )

        def keep(response: dict[str, Any]) -> None:
            # One in the background that was cancelled or deleted meanwhile stays so.
            is_wanted = response["status"] == "queued" or not sent.background
            if sent.store is not False and (
                is_wanted or self.background.is_running(tenant, response["id"])
            ):
                new = with_ids(previous, items[len(previous) :], response["id"])
                said = [without_logprobs(item) for item in response["output"]]
                value = {"response": response, "items": [*previous, *new, *said]}
                is_running = response["status"] == "queued"  # nobody could end it otherwise
                self._store.put(tenant, response["id"], value, is_pinned=is_running)

        def serializer(processed: ProcessedRequest, generation: Generation) -> ResponseSerializer:
            tokenizer = self.processors[generation.model.name].tokenizer
            return ResponseSerializer(
                generation, processed.form, processed.options, tokenizer, sent, keep
            )

        return Translated(body, serializer)

    def run_behind(
        self, tenant: str, serializer: ResponseSerializer, answer: Coroutine[Any, Any, None]
    ) -> dict[str, Any]:
        """Have `answer` write with `serializer` while nobody waits; return what is found first.

        Raises:
            UnavailableError: there is no room to keep it.
        """
        response = serializer.queued()
        response_id = response["id"]
        is_kept = self._store.get(tenant, response_id) is not None
        work = self._run(tenant, response_id, answer)
        self.background.start(tenant, serializer.generation, work)
        if not is_kept:
            self.background.stop(tenant, response_id)
            raise UnavailableError(
                "there is no room to keep a response until it has ended: those that run take "
                "PAGODA_GATEWAY_RESPONSE_STORE_BYTES; try again, or without 'background'",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return response

    async def _run(self, tenant: str, response_id: str, answer: Coroutine[Any, Any, None]) -> None:
        try:
            await answer
        finally:
            kept = self._store.get(tenant, response_id)
            if kept is not None and kept["response"]["status"] == "queued":  # a defect's
                kept["response"] |= failed(InternalError("the gateway failed; its log says why"))
                self._store.put(tenant, response_id, kept)

    def cancel(self, tenant: str, response_id: str) -> dict[str, Any]:
        """End a tenant's response that runs in the background; return what is found from now on.

        Raises:
            NotFoundError: see `find`.
            InvalidRequestError: it does not run in the background.
        """
        kept = self._kept(tenant, response_id)
        response: dict[str, Any] = kept["response"]
        if not response["background"]:
            raise InvalidRequestError(
                "Cannot cancel a synchronous response: close the connection of one that runs"
            )
        if response["status"] == "queued":
            self.background.stop(tenant, response_id)
            response["status"] = "cancelled"
            self._store.put(tenant, response_id, kept)
        return response

    async def count_tokens(self, sent: ResponsesBody, tenant: str, model: ServedModel) -> int:
        """Return how many tokens the input has as a prompt.

        Raises:
            InvalidRequestError: an item cannot be one, or the model's template cannot render it.
            NotFoundError: see `find`.
        """
        body = self.translate(sent, tenant).body
        use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
        return len((await self._chats[model.name].conversation(body, use, model)).token_ids)

    def find(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Return a tenant's response.

        Raises:
            NotFoundError: it is not here, or no longer.
        """
        response: dict[str, Any] = self._kept(tenant, response_id)["response"]
        if response["status"] == "queued" and self.background.has_begun(tenant, response_id):
            response["status"] = "in_progress"
        return response

    def input_page(
        self,
        tenant: str,
        response_id: str,
        *,
        limit: int,
        after: str | None,
        order: Literal["asc", "desc"],
    ) -> dict[str, Any]:
        """Return some of the items that a tenant's response answers, the conversation's included.

        Raises:
            NotFoundError: see `find`.
            InvalidRequestError: see `item_page`.
        """
        kept = self._kept(tenant, response_id)
        num_items = len(kept["items"]) - len(kept["response"]["output"])
        return item_page(kept["items"][:num_items], limit=limit, after=after, order=order)

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a tenant's response; those that went on with it keep its conversation.

        Raises:
            NotFoundError: see `find`.
        """
        self._kept(tenant, response_id)
        self.background.stop(tenant, response_id)
        self._store.delete(tenant, response_id)

    def _previous(self, tenant: str, response_id: str | None) -> list[Any]:
        """Return the items of the conversation that a response ends."""
        if not response_id:
            return []
        kept = self._kept(tenant, response_id)
        if kept["response"]["status"] == "queued":
            raise InvalidRequestError(
                f"'previous_response_id' is {shorten(response_id)}, which has not ended; wait for "
                "its status to change",
                param="previous_response_id",
            )
        items: list[Any] = kept["items"]
        return items

    def _kept(self, tenant: str, response_id: str) -> Any:
        kept = self._store.get(tenant, response_id)
        if kept is None:
            raise NotFoundError(
                f"no response {shorten(response_id)} is kept here: each replica keeps its own, "
                "for a while, unless store is false. Send the whole conversation as input."
            )
        return kept


def _effort(reasoning: dict[str, Any] | None) -> str | None:
    effort = (reasoning or {}).get("effort")
    if isinstance(effort, str | None):
        return effort
    raise InvalidRequestError(
        f"'reasoning.effort' is {shorten(effort)}; it must be text such as low, medium or high",
        param="reasoning.effort",
    )


def _function(tool: FunctionTool) -> dict[str, Any]:
    return function_tool(
        tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )


def _tool_choice(choice: Any) -> Any:
    """Return the choice as chat has it; what is none is refused there."""
    match choice:
        case "auto":
            return None
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": mode, "tools": tools}:
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return choice


def _response_format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None:
        return None
    return {"type": form.type, "json_schema": {"schema": form.schema_}}
