"""POST /v1/chat/completions: a conversation to go on with."""

from collections.abc import Sequence
from dataclasses import replace

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.choices import ChatSerializer
from pagoda_gateway.openai.endpoint import ChoicesEndpoint
from pagoda_gateway.openai.messages import (
    content_text,
    conversation_tokens,
    template_variables,
)
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.request_processor import RequestProcessor, TokenizedPrompts
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.messages import Message
from pagoda_gateway.openai.schemas.tools import ToolUse, tool_use
from pagoda_gateway.openai.truncation import fitting_conversation, truncated
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import ChatTokens


class ChatProcessor(RequestProcessor[ChatBody]):
    """Renders messages; an answer may take what is left of the context."""

    def options(self, body: ChatBody) -> OutputOptions:
        """Return a chat body's options."""
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return output_options(body, num_logprobs=num_logprobs)

    async def tokenize(
        self, body: ChatBody, _options: OutputOptions, model: ServedModel
    ) -> TokenizedPrompts:
        """Render and tokenise the conversation."""
        chat = await self.conversation(body, model)
        max_tokens = body.max_completion_tokens or body.max_tokens
        token_ids = truncated(chat.token_ids, body, model, num_reserved=max_tokens)
        last = body.messages[-1]
        return TokenizedPrompts(
            prompts=[(token_ids, None)],
            max_tokens=max_tokens,
            echo_texts=[content_text(last)] if body.echo and last.role == "assistant" else None,
            text_end=chat.text_end,
            cut_prompts=[token_ids] if len(token_ids) < len(chat.token_ids) else (),
        )

    async def form(self, body: ChatBody, text_end: str, tenant: str) -> AnswerForm:
        """Return the form of an answer: text, calls, reasoning."""
        return await self._forms.of_chat(body, _tool_use(body), text_end, tenant)

    async def conversation(self, body: ChatBody, model: ServedModel) -> ChatTokens:
        """Return the conversation's tokens, the offered tools among them."""
        use = _tool_use(body)

        async def tokens_of(messages: Sequence[Message]) -> ChatTokens:
            return await self._tokens_of(messages, body, use, model)

        if not body.drops_turns:
            return await tokens_of(body.messages)
        room = model.max_model_len - max(1, body.max_completion_tokens or body.max_tokens or 0)
        return await fitting_conversation(body.messages, tokens_of, room)

    async def _tokens_of(
        self, messages: Sequence[Message], body: ChatBody, use: ToolUse, model: ServedModel
    ) -> ChatTokens:
        try:
            return await conversation_tokens(
                self._prompts,
                messages,
                model,
                tools=use.offered,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                variables=template_variables(
                    body.chat_template_kwargs, body.documents, body.reasoning_effort
                ),
                add_special_tokens=body.add_special_tokens,
            )
        except InvalidRequestError as error:
            if error.param == "messages":  # which the client may have sent as something else
                error.param = body.prompt_field
            raise


def _tool_use(body: ChatBody) -> ToolUse:
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    return replace(use, places=body.tool_places) if use.offered and body.tool_places else use


class ChatEndpoint(ChoicesEndpoint[ChatBody]):
    """chat.completion, and its chunks."""

    name = "chat.completions"
    operation = "chat"
    object_id_prefix = "chatcmpl-"
    schema = ChatBody
    serializer_type = ChatSerializer
