"""The kv.fetch stage of a sequence: leading blocks from the kvstore, as the router planned."""

from pagoda_runtime.telemetry.tracing import attached
from pagoda_worker.kv_transfer.reserved_blocks import ReservedBlocks
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.worker import Worker

MAX_FETCH_SECONDS = 10.0


async def fetch_planned_blocks(
    worker: Worker, sequence: LiveSequence, blocks: ReservedBlocks
) -> int:
    """Fetch into a reserved sequence's blocks. Returns the leading tokens whose KV is valid now.

    Marks the stage's begin and end, also when there is nothing to fetch.
    """
    stages = sequence.stages
    stages.fetch_started = worker.clock()
    first, end = blocks.first_block, sequence.plan_num_fetch_blocks
    if worker.tier is not None and end > first:
        hashes = sequence.request.block_hashes[first:end]
        timeout = min(sequence.deadline - stages.fetch_started, MAX_FETCH_SECONDS)
        with attached(sequence.context):
            fetched = await worker.tier.fetch(
                hashes, blocks, first_block=first, timeout_seconds=max(timeout, 0.001)
            )
        sequence.cached.cpu = fetched.num_cpu_blocks * worker.model.block_size
        sequence.cached.nvme = fetched.num_nvme_blocks * worker.model.block_size
        worker.fetch_rate.add(fetched.num_bytes, fetched.seconds)
        worker.metrics.fetched_blocks.labels("cpu").inc(fetched.num_cpu_blocks)
        worker.metrics.fetched_blocks.labels("nvme").inc(fetched.num_nvme_blocks)
        worker.metrics.bad_digests.labels("kvstore").inc(fetched.num_bad_digests)
        if worker.write_through is not None:
            worker.write_through.mark_known(hashes[: fetched.num_blocks])
    num_valid_blocks = blocks.close()
    stages.fetched = worker.clock()
    return min(num_valid_blocks * worker.model.block_size, sequence.num_known_tokens)
