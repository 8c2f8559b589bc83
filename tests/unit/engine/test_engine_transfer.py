import pytest
from support.engine_driver import make_request
from support.tiny_checkpoints import EOS_TOKEN_ID, VOCAB_SIZE
from support.tiny_engine import OTHER, PROMPT, greedy, greedy_tokens, make_driver

from pagoda_engine import (
    FinishReason,
    InvalidSequenceError,
    KvSource,
    LoadedModel,
    SamplingParams,
    SequenceStateError,
)
from pagoda_engine.scheduler import SequenceState


def test_prefill_only_keeps_its_blocks_until_release(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    result = driver.step()
    (output,) = result.outputs
    assert output.token_ids == (greedy_tokens(tiny_model, PROMPT)[0],)
    assert output.finish_reason is None
    assert result.computed[0].block_ids == result.reserved[0].block_ids
    assert driver.engine.num_free_blocks == 26
    assert not driver.engine.has_work()
    driver.engine.release("a")
    assert driver.engine.num_free_blocks == 32
    assert driver.engine.match_prefix(make_request("a", PROMPT, block_size=4).block_hashes) == 5
    assert not driver.engine.has_work()


def test_what_is_held_keeps_no_token_counts(tiny_model: LoadedModel) -> None:
    """They are a vocabulary's bytes on the device, and any number of sequences may be held."""
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(frequency_penalty=0.5), prefill_only=True)
    sequence = driver.engine._scheduler.waiting[0]
    driver.step()
    assert sequence.state is SequenceState.HELD
    assert sequence.sampling_state.counts is None


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (greedy(1), FinishReason.LENGTH),
        (greedy(5, ignore_eos=False, logit_bias={EOS_TOKEN_ID: 1000.0}), FinishReason.STOP),
    ],
    ids=["length", "stop"],
)
def test_prefill_only_says_when_the_output_ends_with_its_token(
    tiny_model: LoadedModel, params: SamplingParams, reason: FinishReason
) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=params, prefill_only=True)
    assert driver.step().outputs[0].finish_reason is reason
    driver.engine.abort("a")
    assert driver.engine.num_free_blocks == 32
    assert driver.step().outputs == ()


def test_release_before_the_token_is_refused(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    with pytest.raises(SequenceStateError) as error:
        driver.engine.release("a")
    assert (error.value.sequence_id, error.value.state) == ("a", "waiting")


def test_import_shares_the_cached_prefix(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(1))
    driver.run()
    driver.add("b", PROMPT, sampling=greedy(), kv_source=KvSource.IMPORT)
    reservation = driver.step().reserved[0]
    assert reservation.num_cached_tokens == 20
    driver.engine.import_finished("b", num_computed_tokens=20)
    assert driver.run()["b"].token_ids == greedy_tokens(tiny_model, PROMPT)


def test_imported_blocks_are_stored_with_the_next_step(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), kv_source=KvSource.IMPORT)
    driver.step()
    driver.engine.import_finished("a", num_computed_tokens=21, first_token_id=3)
    result = driver.step()
    hashes = make_request("a", PROMPT, block_size=4).block_hashes
    assert tuple(h for h, _ in result.stored) == hashes
    assert result.outputs[0].first_index == 1
    assert result.stats.num_prefill_tokens == 0
    assert result.stats.num_decode_tokens == 1


@pytest.mark.parametrize(
    ("params", "token", "reason"),
    [
        (greedy(5, stop_token_ids=(3,)), 3, FinishReason.STOP),
        (greedy(1), 4, FinishReason.LENGTH),
    ],
    ids=["stop", "length"],
)
def test_import_whose_first_token_is_the_last(
    tiny_model: LoadedModel, params: SamplingParams, token: int, reason: FinishReason
) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=params, kv_source=KvSource.IMPORT)
    driver.step()
    driver.engine.import_finished("a", num_computed_tokens=21, first_token_id=token)
    output = driver.run()["a"]
    assert (output.first_index, output.token_ids, output.finish_reason) == (1, [], reason)
    assert driver.engine.num_free_blocks == 32


@pytest.mark.parametrize(
    ("num_computed_tokens", "first_token_id", "what"),
    [
        (22, None, "num_computed_tokens"),
        (-1, None, "num_computed_tokens"),
        (20, 3, "num_computed_tokens"),
        (21, VOCAB_SIZE, "first_token_id"),
    ],
)
def test_import_finished_refuses_what_cannot_be(
    tiny_model: LoadedModel, num_computed_tokens: int, first_token_id: int | None, what: str
) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), kv_source=KvSource.IMPORT)
    driver.step()
    with pytest.raises(InvalidSequenceError) as error:
        driver.engine.import_finished(
            "a", num_computed_tokens=num_computed_tokens, first_token_id=first_token_id
        )
    assert error.value.what == what
    driver.engine.import_finished("a", num_computed_tokens=0)
    assert driver.run()["a"].token_ids == greedy_tokens(tiny_model, PROMPT)


def test_import_finished_twice_is_refused(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy(), kv_source=KvSource.IMPORT)
    driver.step()
    driver.engine.import_finished("a", num_computed_tokens=0)
    with pytest.raises(SequenceStateError, match="is running, not importing"):
        driver.engine.import_finished("a", num_computed_tokens=0)


def test_prefill_only_may_import_its_prefix(tiny_model: LoadedModel) -> None:
    source, target = make_driver(tiny_model), make_driver(tiny_model)
    source.add("a", PROMPT, sampling=greedy(1))
    stored = source.step().stored
    target.add("a", PROMPT, sampling=greedy(), kv_source=KvSource.IMPORT, prefill_only=True)
    block_ids = target.step().reserved[0].block_ids
    blocks = source.engine.kv_cache.read_blocks([b for _, b in stored[:3]])
    target.engine.kv_cache.write_blocks(block_ids[:3], blocks)
    target.engine.import_finished("a", num_computed_tokens=12)
    result = target.step()
    assert result.stats.num_prefill_tokens == 9
    assert result.computed[0].block_ids == block_ids
    assert result.outputs[0].token_ids == (greedy_tokens(tiny_model, PROMPT)[0],)


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "importing", "held"])
def test_abort_frees_at_once_and_is_reported_with_the_next_step(
    tiny_model: LoadedModel, state: str
) -> None:
    driver = make_driver(tiny_model, max_num_batched_tokens=8 if state == "prefilling" else 64)
    fields = {"importing": {"kv_source": KvSource.IMPORT}, "held": {"prefill_only": True}}
    driver.add("a", PROMPT, sampling=greedy(), **fields.get(state, {}))
    if state != "waiting":
        driver.step()
    num_tokens = {"decoding": 1, "held": 1}.get(state, 0)
    driver.engine.abort("a")
    driver.engine.check_invariants()
    assert driver.engine.num_free_blocks == 32
    assert driver.engine.has_work()
    output = driver.run()["a"]
    assert output.finish_reason is FinishReason.ABORT
    assert len(output.token_ids) == num_tokens


def test_abort_leaves_the_others_alone(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy())
    driver.add("b", OTHER, sampling=greedy())
    driver.step()
    driver.engine.abort("a")
    assert driver.run()["b"].token_ids == greedy_tokens(tiny_model, OTHER)


def test_an_import_hears_of_its_blocks_before_others_compute(tiny_model: LoadedModel) -> None:
    driver = make_driver(tiny_model)
    driver.add("a", PROMPT, sampling=greedy())
    driver.step()
    driver.add("b", PROMPT[:9], sampling=greedy(), kv_source=KvSource.IMPORT)
    result = driver.step()
    assert [r.sequence_id for r in result.reserved] == ["b"]
    assert not result.outputs
    assert [o.sequence_id for o in driver.step().outputs] == ["a"]
