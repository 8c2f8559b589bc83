"""POST /tokenize and /detokenize: what a prompt costs before it is sent."""

from typing import Any

from fastapi import APIRouter, Request

from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.admitted_body import admitted_body
from pagoda_gateway.http.caller import caller_of
from pagoda_gateway.http.openapi import described
from pagoda_gateway.openai.messages import conversation_tokens, template_variables
from pagoda_gateway.openai.schemas.tokens import (
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)
from pagoda_gateway.openai.schemas.tools import tool_use
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker


def make_router(gateway: Gateway) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", openapi_extra=described(TokenizeAnswer, body=TokenizeBody))
    async def tokenize(request: Request) -> dict[str, Any]:
        """Return the token ids that the same prompt or messages would have in a request."""
        async with admitted_body(gateway, request, TokenizeBody) as body:
            model = gateway.model_of(caller_of(request).key, body.model or gateway.served_name)
            maker = gateway.texts[model.name].prompts
            tokens = await _tokens(maker, body, model)
            names = await maker.token_texts(tokens) if body.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": model.max_model_len,
            "tokens": tokens,
            "token_strs": names,
        }

    @router.post("/detokenize", openapi_extra=described(DetokenizeAnswer, body=DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, Any]:
        """Return the text of token ids."""
        async with admitted_body(gateway, request, DetokenizeBody) as body:
            model = gateway.model_of(caller_of(request).key, body.model or gateway.served_name)
            model.check_token_ids(body.tokens, param="tokens")
            return {"prompt": await gateway.texts[model.name].prompts.text_of(body.tokens)}

    return router


async def _tokens(maker: PromptMaker, body: TokenizeBody, model: ServedModel) -> list[int]:
    if body.prompt is not None:
        (tokens,) = await maker.text_tokens(
            [body.prompt], model, add_special_tokens=body.add_special_tokens is not False
        )
        return tokens
    chat = await conversation_tokens(
        maker,
        body.messages or [],
        model,
        tools=tool_use(body.tools, body.tool_choice, None).offered,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=template_variables(
            body.chat_template_kwargs, body.documents, body.reasoning_effort
        ),
        add_special_tokens=body.add_special_tokens,
    )
    return chat.token_ids
