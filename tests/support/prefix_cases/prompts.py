"""What a request is to an engine: tokens by the demo model's template and tokenizer, and blocks."""

from functools import cache

import numpy as np

from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared
from pagoda_gateway.accounts.prefixes.outline import Outline, Part
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash
from support.demo import DEMO_MODEL
from support.prefix_cases.requests import Asked


@cache
def template() -> tuple[ChatTemplate, ModelTokenizer]:
    tokenizer = ModelTokenizer.load(DEMO_MODEL)
    loaded = ChatTemplate.load(DEMO_MODEL, tokenizer.special_tokens)
    assert loaded is not None
    return loaded, tokenizer


def prompt_of(asked: Asked, block_size: int) -> tuple[Compared, tuple[bytes, ...]]:
    """Return what a request is compared as, and its blocks' hashes."""
    chat_template, tokenizer = template()
    text = chat_template.render(
        [{"role": role, "content": content} for role, content in asked.messages],
        tools=list(asked.tools) or None,
    )
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    identity = block_hash.kv_identity(fingerprint=asked.model.encode(), layout="l")
    root = block_hash.cache_root(kv_identity=identity, cache_salt=asked.salt.encode())
    outline = Outline.of(
        (Part.of(role, content) for role, content in asked.messages),
        (tool["function"]["name"] for tool in asked.tools),
    )
    key = CacheKey(asked.model, identity, "", root)
    compared = Compared(key, np.asarray(token_ids, np.uint32), outline)
    return compared, block_hash.hash_prompt(root, token_ids, block_size)
