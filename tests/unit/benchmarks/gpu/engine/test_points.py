"""Points at sizes for a CPU: engines that launch ahead, wrong ones, and hosts that refuse.

`test_engine_section` runs all of them in their processes.
"""

import json
from dataclasses import replace

import pytest
import torch
from gpu.engine import golden_points
from gpu.engine.golden_points import FamilySubject
from gpu.engine.plans import SCALES
from gpu.engine.transformers_points import transformers_row
from gpu.engine.width_points import agreement_row, graphs_row
from gpu.harness import worker as point_worker
from gpu.harness.ceilings import Ceilings
from gpu.harness.points import CEILINGS_FILE, NotAvailableError, Setting
from gpu.model import model_subject, shared_weights
from gpu.model.model_subject import ModelSubject, blocks_for
from gpu.model.shapes import SHAPES
from gpu.transfer import subject as transfer_subject
from gpu.transfer.points import link_row, ttft_row
from gpu.transfer.subject import TransferSubject
from support.rerun_capture import RerunCapture
from support.thread_queue import ThreadQueue
from support.tiny_checkpoints import FAMILIES

from pagoda_engine import Engine
from pagoda_engine.cache.peer_pool import PeerPoolError

SEED = 5
SIZES = SCALES["tiny"].sizes
pytestmark = pytest.mark.slow


@pytest.fixture
def setting(tmp_path):
    Ceilings(4e12, 8e14, 2e-6).write(tmp_path / CEILINGS_FILE)
    return Setting("cpu", SEED, tmp_path)


@pytest.fixture
def measure(setting):
    def run(plan, *groups):
        output = setting.folder / "out.jsonl"
        arguments = [plan, "--groups", *groups, "--scope", "tiny", "--device", "cpu"]
        arguments += ["--seed", str(SEED), "--folder", str(setting.folder)]
        assert point_worker.main([*arguments, "--output", str(output)]) == 0
        lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        begun = {line["begin"]: (line["group"], line["name"]) for line in lines if "begin" in line}
        return {begun[line["end"]]: line["row"] for line in lines if "end" in line}

    return run


@pytest.fixture
def subject(setting):
    return ModelSubject(setting, SHAPES["tiny"], SIZES)


@pytest.fixture
def mixture(setting):
    return ModelSubject(setting, SHAPES["tiny-moe"], SIZES)


@pytest.fixture
def launched_ahead(monkeypatch):
    """Engines that work as on a GPU: beside the host, decodes from captured graphs."""
    captures, queues = [], []

    def make(model, config, **fields):
        queues.append(ThreadQueue(SEED))
        captures.append(RerunCapture())
        capture = None if config.enforce_eager else captures[-1]
        return Engine(model, config, queue=queues[-1], graph_capture=capture, **fields)

    monkeypatch.setattr(model_subject, "Engine", make)
    monkeypatch.setattr("support.engine_driver.Engine", make)
    yield captures
    for queue in queues:
        queue.close()


def problems(rows):
    return {key: row for key, row in rows.items() if row["status"] != "passed"}


def test_golden_points_where_steps_overlap(measure, launched_ahead):
    rows = measure("gpu.engine.plans:golden_groups", "width tiny", "tiny llama")
    assert not problems(rows)
    assert any(capture.num_replays for capture in launched_ahead)


def test_decodes_are_replays_where_there_are_graphs(measure, launched_ahead):
    rows = measure("gpu.engine.plans:speed_groups", "tiny")
    assert not problems(rows)
    assert rows["tiny", "decode b4 ctx32"]["is_graph"]
    assert rows["tiny", "capture"]["num_graphs"] == 2


def test_a_mixture_of_experts_agrees_and_its_touched_experts_are_counted(mixture):
    assert graphs_row(mixture)["status"] == agreement_row(mixture)["status"] == "passed"
    assert transformers_row(mixture, 2, 32)["p50_ms"] > 0
    assert 2 < mixture.roofline.touched_experts(4) < 8


def test_transformers_has_no_second_copy_of_the_weights(mixture):
    own = {tensor.untyped_storage().data_ptr() for tensor in mixture.weights.values()}
    theirs = {p.untyped_storage().data_ptr() for p in mixture.reference.parameters()}
    assert theirs == own


def test_an_engine_that_computes_something_else_is_wrong(subject, monkeypatch):
    rope = replace(subject.shape.rope, theta=100.0)
    other = replace(subject.shape, rope=rope)
    config = shared_weights.transformers_config
    monkeypatch.setattr(shared_weights, "transformers_config", lambda shape: config(other))
    row = agreement_row(subject)
    assert row["status"] == "wrong"
    assert row["error"] > row["tolerance"]


def test_a_graph_that_computes_something_else_is_wrong(subject, launched_ahead, monkeypatch):
    def shifted(self, forward):
        return lambda: forward().roll(1, dims=-1)

    monkeypatch.setattr(RerunCapture, "capture", shifted)
    row = graphs_row(subject)
    assert row["status"] == "wrong"
    assert row["num_equal"] < row["num_tokens"]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_expected_token_hangs_on_the_order_of_a_sum(setting, family):
    """Where this fails, another WEIGHT_SEED is needed."""
    prompts = [*golden_points.PROMPTS, *golden_points.SHORT_PROMPTS]
    assert FamilySubject(setting, family).smallest_lead(prompts) > 1e-3


def test_one_other_token_is_wrong(setting):
    subject = FamilySubject(setting, "llama")

    def scenario(subject, is_eager):
        found, expected = golden_points.chunked(subject, is_eager)
        found[1][-1] ^= 1
        return found, expected

    row = golden_points.compare(scenario, True, subject)
    assert row["status"] == "wrong"
    assert row["num_equal"] == row["num_tokens"] - 1


def test_what_does_not_fit_says_what_it_needs(subject, monkeypatch):
    subject.engine()
    monkeypatch.setattr(model_subject, "blocks_for", lambda *_: 10**6)
    with pytest.raises(NotAvailableError, match=r"4 sequences of 96 tokens need .* GB of KV"):
        model_subject.decoding(subject, 4, 96, None).__enter__()


def test_blocks_of_a_point_leave_the_spare_ones_that_admission_asks_for():
    assert blocks_for(64, 8192) > 64 * 512 * 1.01


class Corrupted:
    """A pool with one wrong value in each copy of it."""

    def __init__(self, pool):
        self._pool = pool

    def __getattr__(self, name):
        return getattr(self._pool, name)

    @property
    def tensor(self):
        wrong = self._pool.tensor.clone()
        wrong[0, 0, 0, 0, 0, 0] += 1
        return wrong


def test_a_damaged_block_is_seen(setting):
    subject = TransferSubject(setting, "tiny")
    subject._pool = Corrupted(subject._pool)
    try:
        row = link_row(subject, "pool", 2)
    finally:
        subject.close()
    assert row["status"] == "wrong"
    assert row["num_bad_blocks"] == subject.scale.num_repetitions


def test_a_host_that_refuses_to_share_pools_measures_the_other_way(setting, monkeypatch):
    def refuse(handle, own):
        raise PeerPoolError("cuIpcOpenMemHandle: not supported")

    monkeypatch.setattr(transfer_subject, "open_peer_pool", refuse)
    subject = TransferSubject(setting, "tiny")
    try:
        with pytest.raises(NotAvailableError, match="not supported"):
            link_row(subject, "pool", 2)
        row = ttft_row(subject, "host", by_layers=True)
    finally:
        subject.close()
    assert subject.facts["refusal"] == "cuIpcOpenMemHandle: not supported"
    assert row["status"] == "passed"


def test_a_peer_that_dies_is_no_endless_wait(setting):
    subject = TransferSubject(setting, "tiny")
    subject._peer.kill()
    with pytest.raises(RuntimeError, match="has ended"):
        subject.wait()
    subject.close()


def test_random_kv_is_not_zero():
    tensor = torch.zeros(3, 5, dtype=torch.bfloat16)
    model_subject.fill_random(tensor, 1)
    assert tensor.count_nonzero() == 15
