"""Beam search: one sequence for a worker, several choices for the client."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.running_gateway import Running, Start, heard_of, running_gateway
from support.scripted_worker import ScriptedWorker, letters, running_worker, tiny_card
from support.servers import nats_server, settings_for

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1 import route_pb2
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SEARCH: dict[str, Any] = {"use_beam_search": True, "max_tokens": 8}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """A gateway whose searches have four beams at most."""
    folder = tmp_path_factory.mktemp("narrow")
    with nats_server(folder) as own_nats:
        common = settings_for(own_nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, ScriptedWorker(bus, card=tiny_card(max_model_len=4096)),
                max_beam_width=4,
            ) as running,
        ):  # fmt: skip
            yield running


def text_at(request: pb.GenerateRequest, rank: int) -> str:
    """What the scripted worker finds: see `ScriptedWorker._hypothesis`."""
    indices = range(rank, request.sampling.max_tokens)
    return "".join(chr(letters(request, i) - 5 + 33) for i in indices)


async def test_choices_are_what_one_sequence_finds(running: Running) -> None:
    running.router.answer = route_pb2.RouteResponse(
        status=route_pb2.ROUTE_STATUS_PLACED,
        decode_worker_id=running.worker.worker_id,
        prefill_worker_id="prefill-elsewhere",
        num_fetch_blocks=1,
    )
    answer = await running.completion(
        **SEARCH, prompt=["a", "b"], n=3, length_penalty=0.5, early_stopping="never"
    )
    requests = sorted(running.worker.requests, key=lambda r: r.sequence_index)
    assert [request.sequence_index for request in requests] == [0, 3]
    for request in requests:
        assert request.sampling.temperature == 0
        assert request.sampling.beam_search == pb.BeamSearch(
            width=3, length_penalty=0.5, early_stopping=pb.EARLY_STOPPING_NEVER
        )
        assert request.plan == pb.KvPlan(num_fetch_blocks=1)  # a prefill worker has one token
    body = answer.json()
    expected = [text_at(request, rank) for request in requests for rank in range(3)]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 2 * (8 + 7 + 6)
    assert running.worker.cancels == []


async def test_best_of_widens_the_search_and_all_of_it_counts(running: Running) -> None:
    answer = await running.completion(**SEARCH, n=2, best_of=4)
    (request,) = running.worker.requests
    assert request.sampling.beam_search == pb.BeamSearch(width=4, length_penalty=1.0)
    assert not request.sampling.HasField("num_logprobs")
    body = answer.json()
    assert [c["text"] for c in body["choices"]] == [text_at(request, rank) for rank in (0, 1)]
    assert body["usage"]["completion_tokens"] == 8 + 7 + 6 + 5
    receipt = await running.receipt(answer)
    assert receipt["output_tokens"] == 8 + 7 + 6 + 5
    assert receipt["attempts"] == 1


async def test_a_chat_and_its_stream_have_the_same_choices(running: Running) -> None:
    whole = (await running.chat(**SEARCH, n=2)).json()["choices"]
    (request,) = running.worker.requests
    assert [c["message"]["content"] for c in whole] == [text_at(request, i) for i in (0, 1)]
    chunks = await running.events(**SEARCH, n=2)
    for index, choice in enumerate(whole):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        texts = [part["delta"].get("content", "") for part in own]
        assert "".join(texts) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == "length"


async def test_stop_strings_cut_each_choice(running: Running) -> None:
    await running.completion(**SEARCH, n=2)
    texts = [text_at(running.worker.requests[0], rank) for rank in (0, 1)]
    stop = texts[0][3]
    cut = (await running.completion(**SEARCH, n=2, stop=stop)).json()["choices"]
    kept = await running.completion(**SEARCH, n=2, stop=stop, include_stop_str_in_output=True)
    for i, text in enumerate(texts):
        assert cut[i]["text"] == text.split(stop)[0]
        assert cut[i]["finish_reason"] == "stop"
        assert kept.json()["choices"][i]["text"] == text.split(stop)[0] + stop
    assert running.worker.cancels == []  # the worker had ended it


async def test_logprobs_of_each_choice(running: Running) -> None:
    answer = await running.completion(**SEARCH, n=2, logprobs=2)
    (request,) = running.worker.requests
    assert request.sampling.num_logprobs == 2
    for rank, choice in enumerate(answer.json()["choices"]):
        assert choice["logprobs"]["token_logprobs"] == [-0.5] * (8 - rank)


async def test_a_worker_that_dies_costs_another_attempt_from_the_start(
    start: Start, bus: Any
) -> None:
    first = ScriptedWorker(bus, gate_index=0)
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.completion(**SEARCH, n=2))
        await first.wait_until(lambda: bool(first.requests))
        second = ScriptedWorker(bus)
        async with running_worker(second):
            await heard_of(running.router.directory, second.worker_id)
            await first.kill()
            answer = await asking
        (request,) = second.requests
        receipt = await running.receipt(answer)
    assert (request.attempt, list(request.output_token_ids)) == (1, [])
    assert [c["text"] for c in answer.json()["choices"]] == [text_at(request, i) for i in (0, 1)]
    assert receipt["attempts"] == 2


async def test_a_client_that_goes_away_cancels_the_one_sequence(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker) as running:
        asking = asyncio.create_task(running.completion(**SEARCH, n=3))
        await worker.wait_until(lambda: bool(worker.requests))
        asking.cancel()
        await worker.wait_until(lambda: bool(worker.cancels))
        assert worker.num_running == 0
    assert [list(cancel.sequence_indices) for cancel in worker.cancels] == [[0]]


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"temperature": 0.5}, "temperature", "must be 0"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "must be 1"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "use_beam_search"),
        ({"bad_words": ["x"]}, "bad_words", "use_beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "use_beam_search"),
        ({"n": 5}, "n", "4 at most"),
        ({"n": 2, "best_of": 5}, "best_of", "4 at most"),
        ({"echo": True, "logprobs": 1}, "logprobs", "use_beam_search"),
        ({"echo": True, "max_tokens": 0}, "max_tokens", "use_beam_search"),
        ({"length_penalty": 11}, "length_penalty", "10"),
        ({"early_stopping": "soon"}, "early_stopping", "never"),
        ({"guided_regex": "a*"}, "use_beam_search", "guided_"),
        ({"n": 4, "logprobs": 20, "max_tokens": 800}, "max_tokens", "744 at most"),
    ],
)
async def test_what_a_search_cannot_have_is_named(
    narrow: Running, fields: dict[str, Any], param: str, named: str
) -> None:
    answer = await narrow.completion(**{**SEARCH, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert named in error["message"]
    assert narrow.worker.requests == []


async def test_everything_that_a_search_cannot_have_is_named_at_once(narrow: Running) -> None:
    wrong = {"temperature": 1, "n": 5, "allowed_token_ids": [5], "frequency_penalty": 1}
    answer = await narrow.chat(**SEARCH, **wrong)
    for name in wrong:
        assert f"'{name}'" in answer.json()["error"]["message"]


async def test_what_a_search_cannot_have_is_named_beside_other_wrong_fields(
    narrow: Running,
) -> None:
    wrong = {"temperature": 1, "presence_penalty": 1, "logit_bias": {"5": 1}, "best_of": 3}
    answer = await narrow.completion(**SEARCH, **wrong, stream=True, echo=True, logprobs=1)
    for name in (*wrong, "logprobs"):
        assert f"'{name}'" in answer.json()["error"]["message"]


async def test_values_that_change_nothing_go_with_a_search(narrow: Running) -> None:
    fields = {"temperature": 0, "repetition_penalty": 1, "top_p": 1, "bad_words": [], "seed": 3}
    assert (await narrow.completion(**SEARCH, **fields)).status_code == 200
    narrow.worker.requests.clear()
