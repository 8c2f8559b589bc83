import random
import threading
from pathlib import Path

import psutil
import pytest
import torch
from support.engine_driver import ROOT, EngineDriver, hash_block, make_request
from support.tiny_checkpoints import EOS_TOKEN_ID, make_tiny_checkpoint
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import (
    Engine,
    EngineConfig,
    FinishReason,
    InvalidConfigError,
    InvalidSequenceError,
    KvSource,
    LoadedModel,
    QueueFullError,
    SamplingParams,
    load_model,
)


def test_layout_names_what_blocks_look_like(tiny_model: LoadedModel) -> None:
    engine = make_driver(tiny_model).engine
    assert engine.layout == "kv2-L3-HK2-D16-float32-bs4"
    assert engine.kv_cache.block_bytes == 2 * 3 * 4 * 2 * 16 * 4


def test_new_engine_has_no_work(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    assert not driver.engine.has_work()
    result = driver.step()
    assert result.outputs == ()
    assert result.stats.num_sequences == 0


def test_output_ends_with_length(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(3))
    output = driver.run()["a"]
    assert output.first_index == 0
    assert len(output.token_ids) == 3
    assert output.finish_reason is FinishReason.LENGTH
    assert output.matched_stop_token_id is None


def test_output_ends_at_max_model_len(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_model_len=24)
    driver.add("a", PROMPT, sampling=greedy(50))
    output = driver.run()["a"]
    assert len(output.token_ids) == 3
    assert output.finish_reason is FinishReason.LENGTH


def test_max_model_len_is_also_the_models(tiny_model: LoadedModel) -> None:
    assert make_driver(tiny_model, max_model_len=5000).engine.max_model_len == 512


def test_output_ends_with_a_stop_token(tiny_model: LoadedModel) -> None:
    tokens = greedy_tokens(tiny_model, PROMPT)
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(stop_token_ids=(tokens[2],)))
    output = driver.run()["a"]
    assert output.token_ids == tokens[:3]
    assert output.finish_reason is FinishReason.STOP
    assert output.matched_stop_token_id == tokens[2]


def test_eos_ends_the_output_unless_ignored(tiny_model: LoadedModel) -> None:
    bias = {EOS_TOKEN_ID: 1000.0}
    driver = make_driver(tiny_model)
    driver.add("stops", PROMPT, sampling=greedy(ignore_eos=False, logit_bias=bias))
    driver.add("goes on", PROMPT, sampling=greedy(logit_bias=bias))
    outputs = driver.run()
    assert outputs["stops"].token_ids == [EOS_TOKEN_ID]
    assert outputs["stops"].matched_stop_token_id == EOS_TOKEN_ID
    assert outputs["goes on"].token_ids == [EOS_TOKEN_ID] * 6


def test_min_tokens_puts_the_end_off(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    bias = {EOS_TOKEN_ID: 1000.0}
    params = greedy(ignore_eos=False, logit_bias=bias, min_tokens=3)
    driver.add("a", PROMPT, sampling=params)
    output = driver.run()["a"]
    assert EOS_TOKEN_ID not in output.token_ids[:3]
    assert output.token_ids[3:] == [EOS_TOKEN_ID]


def test_logprobs_come_with_every_token(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(num_logprobs=2))
    output = driver.run()["a"]
    assert [lp.token_id for lp in output.logprobs] == output.token_ids
    assert all(lp.top[0] == (lp.token_id, lp.logprob) for lp in output.logprobs)


@pytest.mark.slow
def test_penalties_survive_preemption(tiny_model: LoadedModel) -> None:
    params = SamplingParams(max_tokens=20, seed=3, presence_penalty=1.0, ignore_eos=True)
    prompts = [PROMPT[:6], OTHER[:6], PROMPT[7:13]]
    alone = [make_driver(tiny_model).generate([p], sampling=params)[0] for p in prompts]
    driver = make_driver(tiny_model, num_blocks=10)
    assert driver.generate(prompts, sampling=params) == alone
    assert driver.num_preempted > 0


def test_earlier_output_counts_for_index_and_penalties(tiny_model: LoadedModel) -> None:
    params = SamplingParams(max_tokens=12, seed=3, frequency_penalty=0.5, ignore_eos=True)
    tokens = make_driver(tiny_model).generate([PROMPT], sampling=params)[0]
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=params, output_token_ids=tuple(tokens[:5]))
    output = driver.run()["a"]
    assert output.first_index == 5
    assert output.token_ids == tokens[5:]


def test_reservation_names_all_prompt_blocks_once(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, num_blocks=10)
    for i, prompt in enumerate((PROMPT[:6], OTHER[:6], PROMPT[7:13])):
        driver.add(str(i), prompt, sampling=greedy(20))
    driver.run()
    reserved = [r for result in driver.results for r in result.reserved]
    assert [r.sequence_id for r in reserved] == ["0", "1", "2"]
    assert [len(r.block_ids) for r in reserved] == [2, 2, 2]
    assert driver.num_preempted > 0


def test_stored_and_evicted_follow_the_pool(tiny_model: LoadedModel) -> None:
    evicted: list[tuple[bytes, int]] = []
    config = EngineConfig(block_size=4, num_blocks=6, max_model_len=100)
    driver = EngineDriver(tiny_model, config, on_evict=lambda h, b: evicted.append((h, b)))
    driver.add("a", PROMPT, sampling=greedy(1))
    result = driver.step()
    request = make_request("a", PROMPT, block_size=4)
    assert tuple(h for h, _ in result.stored) == request.block_hashes
    assert tuple(b for _, b in result.stored) == result.reserved[0].block_ids[:5]
    assert driver.engine.match_prefix(request.block_hashes) == 5
    driver.add("b", OTHER, sampling=greedy(1))
    result = driver.step()
    assert set(result.evicted) == set(request.block_hashes)
    assert [h for h, _ in evicted] == list(result.evicted)
    assert driver.engine.match_prefix(request.block_hashes) == 0


def test_on_evict_sees_the_old_bytes(tiny_model: LoadedModel) -> None:
    copies: dict[bytes, torch.Tensor] = {}

    def on_evict(block_hash: bytes, block_id: int) -> None:
        copies[block_hash] = driver.engine.kv_cache.read_blocks([block_id])[0]

    config = EngineConfig(block_size=4, num_blocks=6, max_model_len=100)
    driver = EngineDriver(tiny_model, config, on_evict=on_evict)
    driver.add("a", PROMPT, sampling=greedy(1))
    stored = driver.step().stored
    before = {h: driver.engine.kv_cache.read_blocks([b])[0] for h, b in stored}
    driver.add("b", OTHER, sampling=greedy(1))
    driver.step()
    assert copies.keys() == before.keys()
    assert all(torch.equal(copies[h], before[h]) for h in before)


def test_caches_of_different_roots_share_nothing(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy())
    driver.run()
    driver.add("b", PROMPT, sampling=greedy(), cache_root=b"another tenant!!")
    assert driver.step().reserved[0].num_cached_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_are_bitwise_the_same_alone_and_in_a_batch(tiny_folder: Path, dtype: str) -> None:
    model = load_model(tiny_folder, EngineConfig(dtype=dtype, max_model_len=100))
    prompts = [PROMPT[:n] for n in (3, 9, 21)] + [OTHER[:n] for n in (1, 8, 17)]
    params = greedy(12, num_logprobs=3)
    alone = []
    for prompt in prompts:
        driver = make_driver(model, num_blocks=64)
        driver.add("a", prompt, sampling=params)
        alone.append(driver.run()["a"].logprobs)
    driver = make_driver(model, num_blocks=64)
    driver.generate(prompts, sampling=params)
    assert [driver.sequences[str(i)].logprobs for i in range(len(prompts))] == alone


def test_unknown_ids_are_ignored(tiny_model: LoadedModel) -> None:
    engine = make_driver(tiny_model).engine
    engine.abort("gone")
    engine.release("gone")
    engine.import_finished("gone", num_computed_tokens=0)
    assert not engine.has_work()


def test_id_may_be_used_again_after_the_end(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(1))
    driver.run()
    driver.sequences.clear()
    driver.add("a", PROMPT, sampling=greedy(1))
    assert driver.run()["a"].token_ids == greedy_tokens(tiny_model, PROMPT, 1)


def test_full_queue_is_refused(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_waiting=2)
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    with pytest.raises(QueueFullError) as error:
        driver.add("c", PROMPT)
    assert (error.value.num_waiting, error.value.limit) == (2, 2)


def test_id_in_use_is_refused(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT)
    with pytest.raises(InvalidSequenceError, match="sequence_id is 'a', must be unique"):
        driver.add("a", OTHER)


def test_load_counts_queues_blocks_and_tokens(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=10, max_num_seqs=2)
    for name in ("a", "b", "c"):
        driver.add(name, PROMPT, sampling=greedy(), cache_root=name.encode() * 16)
    load = driver.engine.load()
    assert (load.num_waiting, load.num_running, load.num_waiting_tokens) == (3, 0, 63)
    driver.step()
    load = driver.engine.load()
    assert (load.num_waiting, load.num_running, load.num_waiting_tokens) == (2, 1, 53)
    assert (load.num_blocks, load.num_free_blocks, load.num_context_tokens) == (32, 26, 10)
    driver.run()
    load = driver.engine.load()
    assert (load.num_waiting, load.num_running, load.num_waiting_tokens) == (0, 0, 0)
    assert load.num_free_blocks == 32


def test_prompts_that_others_compute_are_no_load_of_ours(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_seqs=2)
    for name, source in (
        ("a", KvSource.HANDOVER),
        ("b", KvSource.IMPORT),
        ("c", KvSource.HANDOVER),
        ("d", KvSource.IMPORT),
    ):
        root = name.encode() * 16
        driver.add(name, PROMPT, sampling=greedy(), kv_source=source, cache_root=root)
    assert driver.engine.load().num_waiting_tokens == 2 * len(PROMPT)
    driver.step()
    load = driver.engine.load()
    assert (load.num_waiting, load.num_running, load.num_waiting_tokens) == (2, 2, 2 * len(PROMPT))
    driver.engine.import_finished("a", num_computed_tokens=0)  # nobody has: it is ours now
    assert driver.engine.load().num_waiting_tokens == 3 * len(PROMPT)


def test_stats_say_what_a_step_was(tiny_model: LoadedModel) -> None:
    times = iter(range(100))
    config = EngineConfig(block_size=4, num_blocks=32, max_model_len=100)
    driver = EngineDriver(tiny_model, config, clock=lambda: float(next(times)))
    driver.add("a", PROMPT, sampling=greedy())
    driver.step()
    driver.add("b", OTHER, sampling=greedy())
    stats = driver.step().stats
    assert stats.num_sequences == 2
    assert (stats.num_prefill_tokens, stats.num_decode_tokens) == (21, 1)
    assert stats.num_context_tokens == 22 + 21
    times_seen = (stats.schedule_seconds, stats.forward_seconds, stats.sample_seconds)
    assert times_seen == (1.0, 1.0, 1.0)


def spoil_first_row(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    logits_of = model.decoder.logits

    def spoilt(hidden: torch.Tensor) -> torch.Tensor:
        logits = logits_of(hidden).clone()
        logits[:1] = float("nan")
        return logits

    monkeypatch.setattr(model.decoder, "logits", spoilt)


def test_logits_that_are_not_finite_free_no_block_that_is_being_exported(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=12)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    exported = driver.step().computed[0].block_ids
    spoil_first_row(tiny_model, monkeypatch)
    driver.step()
    assert driver.sequences["a"].finish_reason is FinishReason.ERROR
    driver.add("b", OTHER[:16], sampling=greedy(), prefill_only=True)
    reserved = driver.step().reserved[0].block_ids
    assert not {*exported} & {*reserved}
    driver.engine.abort("a")
    driver.engine.abort("b")
    assert driver.engine.num_free_blocks == 32


def test_logits_that_are_not_finite_end_one_sequence(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(tiny_model)
    driver.add("bad", PROMPT, sampling=greedy())
    driver.add("good", OTHER, sampling=greedy())
    spoil_first_row(tiny_model, monkeypatch)
    driver.step()
    monkeypatch.undo()
    outputs = driver.run()
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert outputs["bad"].error == "the model's logits are not finite"
    assert outputs["good"].token_ids == greedy_tokens(tiny_model, OTHER)
    bad_hashes = make_request("bad", PROMPT, block_size=4).block_hashes
    assert driver.engine.match_prefix(bad_hashes) == 0


def test_prefix_of_a_prompt_whose_logits_are_not_finite_is_computed_anew(
    tiny_model: LoadedModel, request: pytest.FixtureRequest
) -> None:
    row = tiny_model.decoder._embedding.weight[251]
    before = row.clone()
    request.addfinalizer(lambda: row.copy_(before))
    row.fill_(float("nan"))
    driver = make_driver(tiny_model, max_num_batched_tokens=12)
    driver.add("bad", [*PROMPT[:9], 251, *PROMPT[9:]], sampling=greedy())
    driver.add("good", PROMPT, sampling=greedy())  # admitted while the other's NaN is not known
    driver.run()
    driver.add("again", PROMPT, sampling=greedy())
    outputs = driver.run()
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert outputs["again"].token_ids == greedy_tokens(tiny_model, PROMPT)


def test_two_engines_may_share_a_model(tiny_model: LoadedModel) -> None:
    first, second = make_driver(tiny_model), make_driver(tiny_model)
    first.add("a", PROMPT, sampling=greedy())
    second.add("a", OTHER, sampling=greedy())
    while first.engine.has_work() or second.engine.has_work():
        first.step()
        second.step()
    assert first.sequences["a"].token_ids == greedy_tokens(tiny_model, PROMPT)
    assert second.sequences["a"].token_ids == greedy_tokens(tiny_model, OTHER)


def test_blocks_may_be_read_by_another_thread(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    block_ids = driver.step().computed[0].block_ids
    expected = driver.engine.kv_cache.read_blocks(block_ids)
    found: list[torch.Tensor] = []

    def copy() -> None:
        found.append(driver.engine.kv_cache.read_blocks(block_ids))
        driver.engine.kv_cache.write_blocks(range(20, 20 + len(block_ids)), found[0])

    driver.add("b", OTHER, sampling=greedy())
    thread = threading.Thread(target=copy)
    thread.start()
    driver.run()
    thread.join()
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize("name", ["block_size", "num_blocks", "max_num_seqs", "max_model_len"])
def test_limit_below_one_is_refused(tiny_model: LoadedModel, name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name} is 0, must be at least 1"):
        Engine(tiny_model, EngineConfig(**{name: 0}), hash_block=hash_block)


def test_root_of_the_tests_has_the_size_of_a_hash() -> None:
    assert len(ROOT) == len(hash_block(ROOT, [1]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_runs_keep_every_invariant(tiny_model: LoadedModel, seed: int) -> None:
    rng = random.Random(seed)
    driver = make_driver(tiny_model, num_blocks=24, max_num_seqs=5, max_num_batched_tokens=16)
    prompts = [[rng.randrange(256) for _ in range(rng.randint(1, 24))] for _ in range(6)]
    expected = {}
    requests = []
    for i in range(30):
        prompt = rng.choice(prompts)
        params = SamplingParams(
            max_tokens=rng.randint(1, 16),
            temperature=rng.choice([0.0, 0.8]),
            top_p=rng.choice([1.0, 0.9]),
            presence_penalty=rng.choice([0.0, 0.5]),
            seed=i,
        )
        requests.append((str(i), prompt, params))
        expected[str(i)] = make_driver(tiny_model).generate([prompt], sampling=params)[0]
    aborted = set()
    while requests or driver.engine.has_work():
        if requests and rng.random() < 0.5:
            sequence_id, prompt, params = requests.pop()
            driver.add(sequence_id, prompt, sampling=params)
        if rng.random() < 0.03 and driver.sequences:
            sequence_id = rng.choice(list(driver.sequences))
            if driver.sequences[sequence_id].finish_reason is None:
                aborted.add(sequence_id)
                driver.engine.abort(sequence_id)
        driver.step()
    assert driver.engine.num_free_blocks == 24
    for sequence_id, output in driver.sequences.items():
        if sequence_id in aborted:
            assert output.token_ids == expected[sequence_id][: len(output.token_ids)]
        else:
            assert output.token_ids == expected[sequence_id]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_memory_is_flat_whatever_the_number_of_rows(family: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, family)
    model = load_model(folder, EngineConfig(dtype="float32", max_model_len=512))
    driver = make_driver(model, num_blocks=64, max_model_len=100, max_num_batched_tokens=64)
    process = psutil.Process()
    before = process.memory_info().rss
    for num_tokens in range(1, 65):  # each its own number of rows
        driver.add(str(num_tokens), [num_tokens] * num_tokens, sampling=greedy(2))
        driver.run()
    grown = process.memory_info().rss - before
    assert grown < 10 * 2**20, f"{grown / 2**20:.0f} MiB"


def test_who_lost_its_seat_takes_no_place_in_the_queue(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model, max_num_waiting=2, max_num_seqs=2)
    for name in "ab":
        driver.add(name, [1, 2, 3], tenant=b"many")
    driver.step()
    driver.add("c", [1, 2, 3], tenant=b"few")
    driver.step()
    assert driver.num_preempted == 1
    for name in "de":
        driver.add(name, [4, 5, 6], tenant=b"few")
    with pytest.raises(QueueFullError):
        driver.add("f", [4, 5, 6], tenant=b"few")
    assert all(found.finish_reason for found in driver.run().values())
