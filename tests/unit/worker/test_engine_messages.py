import pytest
from opentelemetry.context import Context
from support.sampling_message import sampling_message

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import (
    BeamSearchParams,
    FinishReason,
    KvSource,
    SamplingParams,
    SequenceOutput,
    SequenceRequest,
    TokenLogprobs,
)
from pagoda_runtime.block_hash import hash_prompt
from pagoda_worker import engine_messages
from pagoda_worker.errors import RequestFormatError
from pagoda_worker.sequences import CachedTokens, LiveSequence, Stages

ROOT = bytes(range(16))
PROMPT = list(range(40))


def make_message(**fields: object) -> generate_pb2.GenerateRequest:
    message = generate_pb2.GenerateRequest(
        request_id="r",
        prompt_token_ids=PROMPT,
        output_token_ids=[7, 8],
        cache_root=ROOT,
        block_hashes=b"".join(hash_prompt(ROOT, PROMPT, 16)),
        sampling=sampling_message(SamplingParams(max_tokens=5)),
        priority=-3,
    )
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def make_sequence() -> LiveSequence:
    request = SequenceRequest("r.1.2", (1, 2), (), ROOT, SamplingParams(max_tokens=5))
    return LiveSequence(
        sequence_id="r.1.2",
        request_id="r",
        sequence_index=1,
        attempt=2,
        gateway_id="g",
        context=Context(),
        deadline=0.0,
        request=request,
    )


def decode(message: generate_pb2.GenerateRequest) -> SequenceRequest:
    return engine_messages.sequence_request(
        message,
        sequence_id="s",
        block_size=16,
        kv_source=KvSource.IMPORT,
        prefill_only=True,
        token_mask=None,
    )


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1),
        SamplingParams(
            max_tokens=9,
            min_tokens=2,
            temperature=0.7,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            repetition_penalty=1.1,
            frequency_penalty=-0.3,
            presence_penalty=0.123456,
            logit_bias={3: -100.0, 5: 0.1},
            seed=2**64 - 1,
            num_logprobs=0,
            num_prompt_logprobs=0,
            stop_token_ids=(4, 2),
            ignore_eos=True,
            logprob_token_ids=(8, 6),
            allowed_token_ids=(5, 3),
            bad_words=((5,), (3, 5)),
            top_n_sigma=1.5,
            typical_p=0.9,
            xtc_threshold=0.15,
            xtc_probability=0.3,
            dry_multiplier=0.8,
            dry_base=1.75,
            dry_allowed_length=2,
            dry_sequence_breakers=(9, 4),
            lz_penalty=0.2,
        ),
        SamplingParams(max_tokens=0, embed=True),
        SamplingParams(max_tokens=3, beam_search=BeamSearchParams(4)),
        SamplingParams(max_tokens=3, beam_search=BeamSearchParams(1, -0.7, early_stopping=True)),
        SamplingParams(max_tokens=3, beam_search=BeamSearchParams(2, early_stopping="never")),
    ],
)
def test_sampling_survives_the_wire(params: SamplingParams) -> None:
    wire = sampling_message(params).SerializeToString()
    assert engine_messages.sampling_params(generate_pb2.SamplingParams.FromString(wire)) == params


def test_sequences_share_the_memory_of_equal_breakers() -> None:
    message = generate_pb2.SamplingParams(max_tokens=3, dry_sequence_breakers=range(1000, 2000))
    first, second = (engine_messages.sampling_params(message) for _ in range(2))
    assert first.dry_sequence_breakers is second.dry_sequence_breakers


def test_absent_sampling_fields_are_off() -> None:
    params = engine_messages.sampling_params(generate_pb2.SamplingParams(max_tokens=3))
    assert params == SamplingParams(max_tokens=3, temperature=0.0)


@pytest.mark.parametrize("value", [0.7, 1e-5, 123.456, 0.0, 2.0, float("inf")])
def test_as_decimal_finds_what_was_written(value: float) -> None:
    wire = generate_pb2.SamplingParams(temperature=value)
    assert engine_messages.as_decimal(wire.temperature) == value


def test_request_survives_the_wire() -> None:
    request = decode(make_message())
    assert request == SequenceRequest(
        sequence_id="s",
        prompt_token_ids=tuple(PROMPT),
        block_hashes=hash_prompt(ROOT, PROMPT, 16),
        cache_root=ROOT,
        sampling=SamplingParams(max_tokens=5),
        output_token_ids=(7, 8),
        kv_source=KvSource.IMPORT,
        prefill_only=True,
        priority=-3,
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"block_hashes": bytes(15)}, "multiple of 16"),
        ({"block_hashes": bytes(16)}, "1 block hashes for 2 full blocks"),
        ({"cache_root": bytes(4)}, "4 bytes, must have 16"),
    ],
)
def test_contradicting_request_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(RequestFormatError, match=says):
        decode(make_message(**fields))


def test_logprobs_of_a_prompt_come_in_frames_of_bounded_size() -> None:
    top = tuple((i, -0.25 * i) for i in range(20))
    logprobs = tuple(TokenLogprobs(i, -3.5, top, rank=i) for i in range(2000))
    output = SequenceOutput("r.1.2", 4, (), first_prompt_index=7, prompt_logprobs=logprobs)

    frames = list(engine_messages.prompt_frames(make_sequence(), output))

    assert len(frames) == 3
    assert all(frame.ByteSize() < 1 << 18 for frame in frames)
    assert {(frame.attempt, frame.first_index, len(frame.token_ids)) for frame in frames} == {
        (2, 4, 0)
    }
    found = {
        frame.first_prompt_index + i: (position.chosen.token_id, position.rank, len(position.top))
        for frame in frames
        for i, position in enumerate(frame.prompt_logprobs)
    }
    assert found == {7 + i: (i, i, 20) for i in range(2000)}


def test_frame_carries_tokens_and_the_end() -> None:
    output = SequenceOutput(
        "r.1.2",
        4,
        (9,),
        (TokenLogprobs(9, -0.5, ((9, -0.5), (3, -1.5))),),
        FinishReason.STOP,
        matched_stop_token_id=9,
    )

    frame = engine_messages.frame(make_sequence(), output)

    assert (frame.request_id, frame.sequence_index, frame.attempt) == ("r", 1, 2)
    assert (frame.first_index, list(frame.token_ids)) == (4, [9])
    assert frame.finish_reason == generate_pb2.FINISH_REASON_STOP
    assert frame.matched_stop_token_id == 9
    assert [t.token_id for t in frame.logprobs[0].top] == [9, 3]
    assert frame.logprobs[0].chosen.logprob == -0.5


def test_frame_carries_an_embedding() -> None:
    output = SequenceOutput("r.1.2", 0, (), finish_reason=FinishReason.STOP, embedding=b"1234")
    frame = engine_messages.frame(make_sequence(), output)
    assert (frame.embedding, list(frame.token_ids)) == (b"1234", [])
    assert frame.finish_reason == generate_pb2.FINISH_REASON_STOP
    assert not frame.HasField("matched_stop_token_id")


def test_unfinished_frame_has_no_reason() -> None:
    frame = engine_messages.frame(make_sequence(), SequenceOutput("r.1.2", 0, (1,)))
    assert frame.finish_reason == generate_pb2.FINISH_REASON_UNSPECIFIED
    assert not frame.HasField("matched_stop_token_id")


def test_stage_times_are_differences() -> None:
    stages = Stages(
        accepted=10.0,
        reserved=10.5,
        fetch_started=10.5,
        fetched=10.75,
        first_token=12.0,
        transfer_started=11.0,
        transferred=12.5,
        joined=12.5,
        ended=14.0,
    )
    assert engine_messages.prefill_stages(stages) == generate_pb2.StageTimes(
        prefill_queue_ms=500, kv_fetch_ms=250, prefill_compute_ms=1250
    )
    assert engine_messages.decode_stages(stages, is_local_prefill=False) == generate_pb2.StageTimes(
        kv_transfer_ms=1500, decode_queue_ms=500, decode_generate_ms=1500
    )
    assert engine_messages.decode_stages(stages, is_local_prefill=True).decode_queue_ms == 0
    assert engine_messages.prefill_stages(Stages()) == generate_pb2.StageTimes()


def test_cached_tokens_are_by_tier() -> None:
    message = engine_messages.cached_message(CachedTokens(device=16, cpu=32, nvme=48))
    assert (message.device, message.cpu, message.nvme) == (16, 32, 48)


def test_every_end_has_a_name_on_the_wire() -> None:
    assert engine_messages.FINISH_REASONS.keys() == set(FinishReason)
    assert len(set(engine_messages.FINISH_REASONS.values())) == len(FinishReason)
