"""A decode worker with a draft model, on prompts of its own and on imported ones."""

from pathlib import Path

import pytest
from support.engine_driver import EngineDriver
from support.worker_cluster import Cluster

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams
from pagoda_engine.scheduler.proposing import drafts

pytestmark = pytest.mark.integration

PROMPT = [7 * i % 250 for i in range(70)]
SAMPLING = SamplingParams(max_tokens=300, temperature=0.9, seed=3, ignore_eos=True)
MOST_REQUESTS = 40


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_a_draft_changes_no_token_and_is_counted(
    cluster: Cluster,
    model: LoadedModel,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    prefill_worker_id: str,
) -> None:
    """The draft is the model itself, asked whether it pays or not: so all it says is accepted.

    Where steps overlap a model as small as this may never wait for its draft; tokens are the same.
    """
    overlaps = request.node.callspec.params["device"] == "overlapped"
    monkeypatch.setattr(drafts, "PROBE_SHARE", 1e6)
    alone = EngineDriver(model, EngineConfig(block_size=16, num_blocks=64, max_model_len=512))
    expected = alone.generate([PROMPT], sampling=SAMPLING)[0]
    cluster.common = cluster.common.model_copy(
        update={"draft_model": str(checkpoint), "speculation_output_bytes": 0}
    )
    worker = await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    num_accepted = 0
    for _ in range(
        3 if overlaps else MOST_REQUESTS
    ):  # the first ones teach the worker how long its steps take
        answer = await cluster.generate(
            "decode-1", PROMPT, prefill_worker_id=prefill_worker_id, sampling=SAMPLING
        )
        await answer.finished()
        assert answer.token_ids == expected
        assert answer.last is not None
        num_accepted += answer.last.num_accepted_tokens
        if num_accepted > 20:
            break
    await cluster.idle(worker)
    assert overlaps or num_accepted > 20
    assert worker.metric("pagoda_speculation_accepted_tokens_total") == num_accepted
    assert overlaps or worker.metric("pagoda_speculation_draft_seconds_total") > 0
