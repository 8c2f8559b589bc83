"""POST /tokenize and /detokenize: what a prompt costs before it is sent."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.openapi import described
from pagoda_gateway.openai.messages import conversation_tokens
from pagoda_gateway.openai.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["tokens"])
    max_bytes = gateway.settings.max_body_bytes

    @router.post("/tokenize", openapi_extra=described(TokenizeAnswer, body=TokenizeBody))
    async def tokenize(request: Request) -> dict[str, Any]:
        """Return the token ids that the same prompt or messages would have in a request."""
        body = await read_body(request, TokenizeBody, max_bytes=max_bytes)
        model = gateway.catalog.get(body.model or gateway.served_name)
        tokens = await _tokens(gateway, body)
        names = (
            [gateway.tokenizer.token_text(i) for i in tokens] if body.return_token_strs else None
        )
        return {
            "count": len(tokens),
            "max_model_len": model.max_model_len,
            "tokens": tokens,
            "token_strs": names,
        }

    @router.post("/detokenize", openapi_extra=described(DetokenizeAnswer, body=DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, Any]:
        """Return the text of token ids."""
        body = await read_body(request, DetokenizeBody, max_bytes=max_bytes)
        model = gateway.catalog.get(body.model or gateway.served_name)
        model.check_token_ids(body.tokens, param="tokens")
        return {"prompt": gateway.tokenizer.decode(body.tokens, skip_special_tokens=False)}

    return router


async def _tokens(gateway: Gateway, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either 'prompt' or 'messages'", param="prompt")
    if body.prompt is not None:
        return await gateway.prompts.text_tokens(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    return await conversation_tokens(
        gateway.prompts,
        body.messages or [],
        tools=body.tools or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs,
        add_special_tokens=body.add_special_tokens,
    )
