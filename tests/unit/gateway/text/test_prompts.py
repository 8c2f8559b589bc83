"""Prompts hashed and tokenised: tenants apart, long texts off the event loop."""

from dataclasses import replace

from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker, cache_salt
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash


async def test_tenants_never_share_blocks(maker: PromptMaker, model: ServedModel) -> None:
    ids = list(range(5, 40))
    first = await maker.finish(ids, None, model, "a")
    second = await maker.finish(ids, None, model, "b")
    again = await maker.finish(ids, None, model, "a")
    assert len(first.block_hashes) == 2
    assert not set(first.block_hashes) & set(second.block_hashes)
    assert first == again
    root = block_hash.cache_root(kv_identity=model.kv_identity, cache_salt=cache_salt("a"))
    assert first.block_hashes == block_hash.hash_prompt(root, ids, 16)


async def test_own_salts_are_apart_within_a_tenant(maker: PromptMaker, model: ServedModel) -> None:
    ids = list(range(5, 40))
    salted = [("a", ""), ("a", "b"), ("a", "c"), ("b", "b"), ("ab", ""), ("", "ab")]
    hashes = [
        set((await maker.finish(ids, None, model, tenant, own_salt=salt)).block_hashes)
        for tenant, salt in salted
    ]
    assert len(set.union(*hashes)) == 2 * len(salted)
    again = await maker.finish(ids, None, model, "a", own_salt="b")
    assert set(again.block_hashes) == hashes[1]


async def test_long_texts_leave_the_event_loop(
    maker: PromptMaker, tokenizer: ModelTokenizer, model: ServedModel
) -> None:
    text = "hello world " * 2000
    large = replace(model, max_model_len=30_000)
    (ids,) = await maker.text_tokens([text], large, add_special_tokens=False)
    assert await maker.text_of(ids) == text
    assert "".join(await maker.token_texts(ids)) == text
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
