"""POST /v1/chat/completions: a conversation to go on with."""

from typing import Any

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, shorten
from pagoda_gateway.openai.messages import conversation_tokens
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.request_processor import RequestProcessor, TokenizedPrompts
from pagoda_gateway.openai.responses import ChatSerializer
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.sequences.output_options import OutputOptions
from pagoda_gateway.served_model import ServedModel


class ChatProcessor(RequestProcessor[ChatBody]):
    """Renders messages; an answer may take what is left of the context."""

    endpoint = "chat.completions"
    operation = "chat"
    object_id_prefix = "chatcmpl-"
    schema = ChatBody
    serializer = ChatSerializer

    def options(self, body: ChatBody) -> OutputOptions:
        """Check a chat body's options."""
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequestError("'top_logprobs' needs logprobs: true", param="top_logprobs")
        _check_tool_choice(body)
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return output_options(body, num_logprobs=num_logprobs, max_n=self._settings.max_n)

    async def tokenize(
        self, body: ChatBody, _options: OutputOptions, model: ServedModel
    ) -> TokenizedPrompts:
        """Render and tokenise the conversation."""
        token_ids = await conversation_tokens(
            self._prompts,
            body.messages,
            model,
            tools=body.tools if body.tools and body.tool_choice != "none" else None,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
            add_special_tokens=body.add_special_tokens,
        )
        last = body.messages[-1]
        return TokenizedPrompts(
            prompts=[(token_ids, None)],
            max_tokens=body.max_completion_tokens or body.max_tokens,
            echo_texts=[str(last.content)] if body.echo and last.role == "assistant" else None,
        )


def _check_tool_choice(body: ChatBody) -> None:
    """Tools may enter the prompt; forcing a call is not supported yet."""
    choice: Any = body.tool_choice
    if choice is None or choice in ("none", "auto"):
        return
    if choice == "required" or (isinstance(choice, dict) and choice.get("type") == "function"):
        if not body.tools:
            raise InvalidRequestError("'tool_choice' needs 'tools'", param="tool_choice")
        raise UnsupportedFieldError(
            f"'tool_choice' {shorten(choice)} is not supported by this server; use auto or none",
            param="tool_choice",
        )
    raise InvalidRequestError(
        f"'tool_choice' must be none, auto, required or a function, not {shorten(choice)}",
        param="tool_choice",
    )
