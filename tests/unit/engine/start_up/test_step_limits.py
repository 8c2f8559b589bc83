from hypothesis import given
from hypothesis import strategies as st

from pagoda_engine.start_up.step_limits import (
    CPU_LIMITS,
    CUDA_LIMITS,
    MAX_ROOM_SHARE,
    StepLimits,
    cuda_limits,
)

GIB = 2**30
ROOMS = st.integers(0, 100 * GIB)
TOKEN_BYTES = st.integers(1, 10 * 2**20)
ROW_BYTES = st.integers(1, 10 * 2**20)


def test_a_large_gpu_takes_the_largest_step() -> None:
    limits = cuda_limits(room_bytes=60 * GIB, token_bytes=102_400, row_bytes=1_800_000)

    assert limits == CUDA_LIMITS


def test_a_small_gpu_takes_smaller_steps() -> None:
    limits = cuda_limits(room_bytes=2 * GIB, token_bytes=102_400, row_bytes=1_800_000)

    assert limits == StepLimits(max_num_seqs=64, max_num_batched_tokens=2048)


@given(ROOMS, TOKEN_BYTES, ROW_BYTES)
def test_a_step_takes_its_part_of_the_room_or_is_the_smallest(
    room_bytes: int, token_bytes: int, row_bytes: int
) -> None:
    limits = cuda_limits(room_bytes=room_bytes, token_bytes=token_bytes, row_bytes=row_bytes)
    step_bytes = limits.max_num_batched_tokens * token_bytes + limits.max_num_seqs * row_bytes

    assert limits == CPU_LIMITS or step_bytes <= room_bytes * MAX_ROOM_SHARE
    assert CPU_LIMITS.max_num_seqs <= limits.max_num_seqs <= CUDA_LIMITS.max_num_seqs
    assert limits.max_num_seqs <= limits.max_num_batched_tokens


@given(ROOMS, ROOMS, TOKEN_BYTES, ROW_BYTES)
def test_more_room_never_makes_a_step_smaller(
    room: int, more: int, token_bytes: int, row_bytes: int
) -> None:
    small = cuda_limits(room_bytes=room, token_bytes=token_bytes, row_bytes=row_bytes)
    large = cuda_limits(room_bytes=room + more, token_bytes=token_bytes, row_bytes=row_bytes)

    assert large.max_num_batched_tokens >= small.max_num_batched_tokens
    assert large.max_num_seqs >= small.max_num_seqs
