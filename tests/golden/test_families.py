"""Every family against transformers in float32: logits close, greedy tokens equal.

However the engine schedules: alone, in batches, in chunks, with shared, preempted or imported KV.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from support.engine_driver import EngineDriver
from support.oracle import Oracle
from support.random_tokens import random_tokens

from pagoda_engine import EngineConfig, KvSource, SamplingParams
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.decoder import Decoder
from pagoda_kernels import plan_attention

MAX_TOKENS = 20
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
pytestmark = pytest.mark.slow


SHARED = random_tokens(40)
PROMPTS = [
    random_tokens(5),
    SHARED + random_tokens(24),  # a multiple of the block size
    SHARED + random_tokens(9),
    random_tokens(83),
]


def config(**fields: object) -> EngineConfig:
    values = {"block_size": 8, "num_blocks": 128, "dtype": "float32", "max_model_len": 512}
    return EngineConfig(**{**values, **fields})


def expected(oracle: Oracle, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    return [oracle.greedy(prompt, MAX_TOKENS) for prompt in prompts]


def all_logits(decoder: Decoder, token_ids: Sequence[int], chunks: Sequence[int]) -> torch.Tensor:
    """Run tokens in chunks through blocks that lie in no particular order."""
    shape = decoder.description
    layout = shape.kv_layout(8, torch.float32)
    kv_cache = KvCache(layout, 32, torch.device("cpu"))
    block_table = list(range(31, -1, -1))
    logits, start = [], 0
    with torch.inference_mode():
        for chunk in chunks:
            plan = plan_attention(
                seqlens_q=[chunk],
                context_lens=[start + chunk],
                block_tables=[block_table],
                block_size=8,
                device=torch.device("cpu"),
            )
            ids = torch.tensor(token_ids[start : start + chunk])
            positions = torch.arange(start, start + chunk)
            logits.append(decoder.forward(ids, positions, plan, kv_cache, None))
            start += chunk
    return torch.cat(logits)


@pytest.mark.parametrize("chunks", [[90], [1] * 90, [33, 1, 8, 47, 1]], ids=["1", "90", "mixed"])
def test_logits_are_close(oracle: Oracle, chunks: list[int]) -> None:
    tokens = random_tokens(90)
    found = all_logits(oracle.model.decoder, tokens, chunks)
    torch.testing.assert_close(found, oracle.logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
        {"head_dim": 40},
    ],
    ids=["linear", "llama3", "yarn", "rope-parameters", "biases", "tied-mha", "head-dim"],
)
def test_llama_options_change_logits_as_in_transformers(
    make_oracle: Callable[..., Oracle], overrides: dict[str, object]
) -> None:
    oracle = make_oracle("llama", **overrides)
    tokens = random_tokens(150)
    found = all_logits(oracle.model.decoder, tokens, [100, 50])
    torch.testing.assert_close(found, oracle.logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_layer_types_choose_the_windows(
    make_oracle: Callable[..., Oracle], family: str
) -> None:
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    oracle = make_oracle(
        family,
        layer_types=layer_types,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=13,
    )
    tokens = random_tokens(70)
    found = all_logits(oracle.model.decoder, tokens, [64, 6])
    torch.testing.assert_close(found, oracle.logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("qwen3_moe", {"norm_topk_prob": False, "tie_word_embeddings": True}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": []}),
        ("qwen3_moe", {"attention_bias": True, "num_experts_per_tok": 8}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1}),
        ("mixtral", {"sliding_window": 13, "num_experts_per_tok": 1}),
    ],
    ids=["weights-as-they-are", "every-other-layer", "all-experts", "window", "mixtral-window"],
)
def test_options_of_mixtures_change_logits_as_in_transformers(
    make_oracle: Callable[..., Oracle], family: str, overrides: dict[str, object]
) -> None:
    oracle = make_oracle(family, **overrides)
    tokens = random_tokens(70)
    found = all_logits(oracle.model.decoder, tokens, [64, 6])
    torch.testing.assert_close(found, oracle.logits(tokens), atol=1e-4, rtol=1e-4)


def test_greedy_tokens_alone(oracle: Oracle) -> None:
    for prompt, tokens in zip(PROMPTS, expected(oracle), strict=True):
        driver = EngineDriver(oracle.model, config())
        assert driver.generate([prompt], sampling=GREEDY) == [tokens]


def test_greedy_tokens_in_a_batch(oracle: Oracle) -> None:
    driver = EngineDriver(oracle.model, config())
    assert driver.generate(PROMPTS, sampling=GREEDY) == expected(oracle)


@pytest.mark.parametrize("max_num_batched_tokens", [7, 16])
def test_greedy_tokens_with_chunked_prefill(oracle: Oracle, max_num_batched_tokens: int) -> None:
    driver = EngineDriver(oracle.model, config(max_num_batched_tokens=max_num_batched_tokens))
    assert driver.generate(PROMPTS, sampling=GREEDY) == expected(oracle)


def test_greedy_tokens_after_prefix_hits(oracle: Oracle) -> None:
    driver = EngineDriver(oracle.model, config())
    driver.add("first", PROMPTS[1], sampling=GREEDY)
    driver.run()
    driver.add("again", PROMPTS[1], sampling=GREEDY)
    driver.add("shared", PROMPTS[2], sampling=GREEDY)
    outputs = driver.run()
    cached = {r.sequence_id: r.num_cached_tokens for s in driver.results for r in s.reserved}
    assert cached == {"first": 0, "again": 56, "shared": 40}
    tokens = expected(oracle, [PROMPTS[1], PROMPTS[1], PROMPTS[2]])
    assert [outputs[i].token_ids for i in ("first", "again", "shared")] == tokens


def test_greedy_tokens_while_two_sequences_share_blocks(oracle: Oracle) -> None:
    driver = EngineDriver(oracle.model, config())
    driver.add("one", PROMPTS[1], sampling=GREEDY)
    driver.step()  # its prompt blocks are reusable from now on
    driver.add("two", PROMPTS[2], sampling=GREEDY)
    reservation = driver.step().reserved[0]
    assert reservation.num_cached_tokens == 40
    outputs = driver.run()
    tokens = expected(oracle, [PROMPTS[1], PROMPTS[2]])
    assert [outputs["one"].token_ids, outputs["two"].token_ids] == tokens


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_after_preemption(oracle: Oracle, enable_prefix_caching: bool) -> None:
    prompts = [prompt[:20] for prompt in PROMPTS]
    driver = EngineDriver(
        oracle.model,
        config(
            block_size=4,
            num_blocks=18,
            enable_prefix_caching=enable_prefix_caching,
            max_num_batched_tokens=32,
        ),
    )
    assert driver.generate(prompts, sampling=GREEDY) == expected(oracle, prompts)
    assert driver.num_preempted > 0


def test_greedy_tokens_after_a_failover(oracle: Oracle) -> None:
    tokens = oracle.greedy(PROMPTS[2], MAX_TOKENS)
    driver = EngineDriver(oracle.model, config())
    driver.add("retry", PROMPTS[2], sampling=GREEDY, output_token_ids=tuple(tokens[:9]))
    output = driver.run()["retry"]
    assert output.first_index == 9
    assert output.token_ids == tokens[9:]


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "whole-blocks", "partial", "long"])
def test_greedy_tokens_after_kv_transfer(oracle: Oracle, prompt: list[int]) -> None:
    tokens = oracle.greedy(prompt, MAX_TOKENS)
    producer = EngineDriver(oracle.model, config(max_num_batched_tokens=24))
    consumer = EngineDriver(oracle.model, config())
    consumer.add("x", prompt, sampling=GREEDY, kv_source=KvSource.IMPORT)
    reservation = consumer.step().reserved[0]
    assert not consumer.engine.has_work()
    producer.add("x", prompt, sampling=GREEDY, prefill_only=True)
    producer.run()
    for computed in (c for result in producer.results for c in result.computed):
        blocks = producer.engine.kv_cache.read_blocks(computed.block_ids)
        first, end = computed.first_block, computed.first_block + len(computed.block_ids)
        consumer.engine.kv_cache.write_blocks(reservation.block_ids[first:end], blocks)
    producer.engine.release("x")
    assert producer.engine.num_free_blocks == 128
    first_token = producer.sequences["x"].token_ids
    consumer.engine.import_finished(
        "x", num_computed_tokens=len(prompt), first_token_id=first_token[0]
    )
    output = consumer.run()["x"]
    assert output.first_index == 1
    assert first_token + output.token_ids == tokens


@pytest.mark.parametrize("num_computed_tokens", [0, 19, 48])
def test_greedy_tokens_after_an_import_that_broke_off(
    oracle: Oracle, num_computed_tokens: int
) -> None:
    prompt = PROMPTS[1]
    producer = EngineDriver(oracle.model, config())
    producer.add("x", prompt, sampling=GREEDY, prefill_only=True)
    computed = producer.step().computed[0]
    consumer = EngineDriver(oracle.model, config())
    consumer.add("x", prompt, sampling=GREEDY, kv_source=KvSource.IMPORT)
    reservation = consumer.step().reserved[0]
    num_blocks = -(-num_computed_tokens // 8)
    blocks = producer.engine.kv_cache.read_blocks(computed.block_ids[:num_blocks])
    consumer.engine.kv_cache.write_blocks(reservation.block_ids[:num_blocks], blocks)
    consumer.engine.import_finished("x", num_computed_tokens=num_computed_tokens)
    assert consumer.run()["x"].token_ids == oracle.greedy(prompt, MAX_TOKENS)


def test_seeded_sampling_is_the_same_alone_in_batches_and_after_preemption(oracle: Oracle) -> None:
    prompts = [prompt[:20] for prompt in PROMPTS]

    def sampling(seed: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=MAX_TOKENS, temperature=0.9, top_p=0.95, seed=seed, ignore_eos=True
        )

    def run(numbers: Sequence[int], **fields: object) -> tuple[list[list[int]], int]:
        driver = EngineDriver(oracle.model, config(**fields))
        for i in numbers:
            driver.add(str(i), prompts[i], sampling=sampling(1000 + i))
        outputs = driver.run()
        return [outputs[str(i)].token_ids for i in numbers], driver.num_preempted

    alone = [run([i])[0][0] for i in range(4)]
    together, _ = run(range(4))
    preempted, num_preempted = run(range(4), block_size=4, num_blocks=18)
    assert together == alone
    assert preempted == alone
    assert num_preempted > 0
    assert len({tuple(tokens) for tokens in alone}) == 4
