"""What it costs to move KV between two processes on one device, and what disaggregation gains."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import torch

from gpu.harness.ceilings_group import ceilings_group
from gpu.harness.points import Group, Point, Setting, Subject
from gpu.harness.rows import Row
from gpu.harness.timing import Timing
from gpu.model.roofline import StepShape
from gpu.transfer.ipc_check import check_ipc
from gpu.transfer.prompt_arrivals import Arrivals, prompt_request
from gpu.transfer.scale import TRANSFER_SCALES
from gpu.transfer.subject import Fetch, TransferSubject

LINK_GOAL = 0.70
"""Of the copy bandwidth, of the copy between two processes on one device and its verification.

The whole link also reads every block for its digest before, a pass more than a copy has.
"""

TTFT_GOAL = 0.05
"""What a transfer may add to the time to the first token."""

PINNED_BYTES = 256 << 20
CHECKED_BYTES = 8 << 20


def transfer_groups(size: str, device: str) -> list[Group]:
    """The ceilings; what two processes do: links, first tokens, gaps; then one dies."""
    scale = TRANSFER_SCALES[size]
    points = [
        Point("ttft alone", partial(ttft_row, way="none", by_layers=False)),
        Point("itl aggregated", partial(itl_row, way="none")),
        *_points_of("pool", scale.link_blocks),
        *_points_of("host", scale.link_blocks),
    ]
    transfer = Group(
        "transfer", lambda setting: TransferSubject(setting, size), tuple(points), weight=4.0
    )
    death = Group("death", PoolCheck, (Point("pool of a process that dies", death_row),))
    return [ceilings_group(size), transfer, death]


def _points_of(way: str, link_blocks: Sequence[int]) -> list[Point]:
    """Of one way that KV takes; what a user waits for comes first."""
    ttft, by_layers = (
        Point(
            f"ttft {way}{' by layers' if by_layers else ''}",
            partial(ttft_row, way=way, by_layers=by_layers),
        )
        for by_layers in (False, True)
    )
    links = [
        Point(f"link {way} {count} blocks", partial(link_row, way=way, num_blocks=count))
        for count in link_blocks
    ]
    return [ttft, Point(f"itl disaggregated {way}", partial(itl_row, way=way)), by_layers, *links]


class PoolCheck(Subject):
    """A pool whose owner is killed while another process reads it."""

    def __init__(self, setting: Setting) -> None:
        self.device = setting.device
        self.facts: Row = {}


def death_row(subject: PoolCheck) -> Row:
    """Run `ipc_check` on the device."""
    found = check_ipc(subject.device, CHECKED_BYTES)
    is_right = found.is_equal and found.finds_change
    return {"status": "passed" if is_right else "wrong", **asdict(found)}


def link_row(subject: TransferSubject, way: str, num_blocks: int) -> Row:
    """Time from the request for some blocks until all are in this pool and verified there."""
    subject.require(way)
    fetches, seconds = [], []
    for number in range(subject.scale.num_repetitions + 1):
        started = time.perf_counter()
        subject.send(f"{way}-{num_blocks}-{number}", way, num_blocks)
        fetch = subject.wait()
        if number:  # the first one warms up
            fetches.append(fetch)
            seconds.append(fetch.at - started)
    timing = Timing.of(seconds)
    num_bytes = num_blocks * subject.engine.kv_cache.block_bytes
    fraction = 2 * num_bytes / timing.p50 / subject.ceilings.copy_bytes_per_second
    goal = LINK_GOAL if way == "pool" else None
    copy_seconds = statistics.median(f.copy_seconds for f in fetches)
    copy_fraction = 2 * num_bytes / copy_seconds / subject.ceilings.copy_bytes_per_second
    return {
        **_verdict(fetches),
        "way": way,
        "num_bytes": num_bytes,
        "p20_ms": timing.p20 * 1e3,
        "p50_ms": timing.p50 * 1e3,
        "p80_ms": timing.p80 * 1e3,
        "gigabytes_per_second": num_bytes / timing.p50 / 1e9,
        "fraction_of_copy": fraction,
        "goal": goal,
        "meets_goal": None if goal is None else copy_fraction >= goal,
        "copy_ms": copy_seconds * 1e3,
        "copy_fraction_of_copy": copy_fraction if way == "pool" else None,
        **({"predicted_ms": predicted_link(subject, num_bytes) * 1e3} if way == "pool" else {}),
        **(_pinned_rates(subject) if way == "host" else {}),
    }


def ttft_row(subject: TransferSubject, way: str, by_layers: bool) -> Row:
    """A prompt that the peer prefills: when its first token and all of its KV are here.

    The first token needs no KV here; the second does. So what a transfer adds is the time from the
    request until the KV is verified, over the time to the first token without any transfer.
    """
    subject.require(way)
    fetches, ttft, kv_there, second, tokens = [], [], [], [], []
    for number in range(subject.scale.num_repetitions + 1):
        sequence_id = f"ttft-{way}-{by_layers}-{number}"
        request = prompt_request(subject, sequence_id, number, is_import=True)
        started = time.perf_counter()
        subject.engine.add(request)
        (reserved,) = subject.engine.step().reserved
        subject.prefill(
            sequence_id,
            list(request.prompt_token_ids),
            reserved.block_ids,
            way=way,
            by_layers=by_layers,
        )
        fetch = subject.wait()
        second_at, second_token_id = _finish_import(subject, fetch, way)
        if number:
            fetches.append(fetch)
            ttft.append(fetch.token_at - started)
            kv_there.append(fetch.at - started)
            second.append(second_at - started)
            tokens.append((fetch.token_id, second_token_id))
    length = subject.scale.prompt_length
    prefill = subject.roofline.predicted_seconds(StepShape((length,), (length,)), subject.ceilings)
    row = {
        **_verdict(fetches),
        "way": way,
        "by_layers": by_layers,
        "length": length,
        "tokens": tokens,
        "ttft_ms": statistics.median(ttft) * 1e3,
        "worst_ttft_ms": max(ttft) * 1e3,
        "predicted_ttft_ms": prefill * 1e3,
    }
    if way == "none":
        subject.alone_seconds = statistics.median(ttft)
        return row
    added = None
    if subject.alone_seconds is not None:
        added = statistics.median(kv_there) / subject.alone_seconds - 1
    if way == "pool":
        num_bytes = length * subject.shape.kv_bytes_per_token(subject.scale.dtype)
        num_parts = subject.scale.num_layer_groups if by_layers else 1
        after = predicted_link(subject, num_bytes) / num_parts
        row["predicted_kv_there_ms"] = (prefill + after) * 1e3
    return {
        **row,
        "kv_there_ms": statistics.median(kv_there) * 1e3,
        "second_token_ms": statistics.median(second) * 1e3,
        "added_to_ttft": added,
        "goal": TTFT_GOAL,
        "meets_goal": None if added is None else added < TTFT_GOAL,
    }


def itl_row(subject: TransferSubject, way: str) -> Row:
    """Gaps between the tokens of a batch while prompts arrive.

    Args:
        subject: both processes.
        way: of the prompts' KV; none: the engine that decodes prefills them itself, in chunks.
    """
    subject.require(way)
    run = Arrivals(subject, way)
    try:
        run.decode()
    finally:
        run.end()
    gaps = sorted(run.gaps)
    scale = subject.scale
    decodes, contexts = (1,) * scale.batch, (scale.context + len(gaps) // 2,) * scale.batch
    alone = subject.roofline.predicted_seconds(StepShape(decodes, contexts), subject.ceilings)
    mixed = StepShape((scale.chunk, *decodes), (scale.prompt_length, *contexts))
    # Beside another process that is busy, each has the device for half of the time.
    worst = (
        subject.roofline.predicted_seconds(mixed, subject.ceilings) if way == "none" else 2 * alone
    )
    return {
        **_verdict(run.fetches),
        "way": way,
        "batch": scale.batch,
        "num_prompts": len(run.ttft),
        "num_gaps": len(gaps),
        "itl_p50_ms": statistics.median(gaps) * 1e3,
        "itl_p99_ms": gaps[int(0.99 * (len(gaps) - 1))] * 1e3,
        "itl_worst_ms": gaps[-1] * 1e3,
        "predicted_itl_p50_ms": alone * 1e3,
        "predicted_itl_p99_ms": worst * 1e3,
        "tokens_per_second": scale.batch * len(gaps) / sum(gaps),
        "prompt_ttft_ms": statistics.median(run.ttft) * 1e3 if run.ttft else None,
    }


def predicted_link(subject: TransferSubject, num_bytes: int) -> float:
    """Seconds of one pass that reads for the digest there, one that reads here, one that writes."""
    return 3 * num_bytes / subject.ceilings.copy_bytes_per_second


def _finish_import(subject: TransferSubject, fetch: Fetch, way: str) -> tuple[float, int | None]:
    """Go on with a prompt to its second token, or end it; returns when that was there, and it."""
    subject.release(fetch.transfer_id)
    engine, token_id = subject.engine, None
    assert fetch.token_id is not None
    if way == "none":
        engine.abort(fetch.transfer_id)
    else:
        engine.import_finished(
            fetch.transfer_id,
            num_computed_tokens=subject.scale.prompt_length,
            first_token_id=fetch.token_id,
        )
    second_at = time.perf_counter()
    while engine.has_work():
        for output in engine.step().outputs:
            if token_id is None and output.token_ids:
                token_id, second_at = output.token_ids[0], time.perf_counter()
    return second_at, token_id


def _verdict(fetches: Sequence[Fetch]) -> Row:
    num_bad = sum(fetch.num_bad_blocks for fetch in fetches)
    return {"status": "wrong" if num_bad else "passed", "num_bad_blocks": num_bad}


def _pinned_rates(subject: TransferSubject) -> Row:
    """What one copy to or from pinned memory does at most."""
    device = torch.device(subject.setting.device)
    if device.type != "cuda":
        return {}
    host = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(PINNED_BYTES, dtype=torch.uint8, device=device)
    row: Row = {}
    for name, target, source in (("to_host", host, there), ("to_device", there, host)):
        seconds = []
        for _ in range(4):
            torch.cuda.synchronize()
            started = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        row[f"pinned_{name}_gigabytes_per_second"] = PINNED_BYTES / min(seconds) / 1e9
    return row
