"""The memory checker of these tests finds what it is for, and lets pass what is right."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="of the interpreter")


@triton.jit
def copy(x_ptr, y_ptr, n, stop, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < stop), mask=offs < n)


@triton.jit
def all_to_one(y_ptr):
    tl.store(y_ptr, tl.program_id(0))


@triton.jit
def same_to_one(y_ptr):
    tl.store(y_ptr, 7)


@triton.jit
def lanes_to_one(y_ptr):
    offs = tl.arange(0, 4)
    tl.store(y_ptr + offs // 2, offs)


@triton.jit
def shift(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs + 1, mask=offs + 1 < n)
    tl.store(x_ptr + offs, x, mask=offs + 1 < n)


@triton.jit
def reversed_through_memory(x_ptr, y_ptr, HAS_BARRIER: tl.constexpr):
    offs = tl.arange(0, 8)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs))
    if HAS_BARRIER:
        tl.debug_barrier()
    tl.store(x_ptr + offs, tl.load(y_ptr + 7 - offs))


@triton.jit
def last_adds_up(
    x_ptr, partial_ptr, counter_ptr, y_ptr, n, SEMANTIC: tl.constexpr, HAS_BARRIER: tl.constexpr
):
    i = tl.program_id(0)
    tl.store(partial_ptr + i, tl.load(x_ptr + i))
    if HAS_BARRIER:
        tl.debug_barrier()
    if tl.atomic_add(counter_ptr, 1, sem=SEMANTIC) == n - 1:
        total = 0.0
        for j in range(n):
            total += tl.load(partial_ptr + j)
        tl.store(y_ptr, total)
        tl.store(counter_ptr, 0)


@triton.jit
def odd_words(x_ptr, y_ptr):
    words = (x_ptr + 1).to(tl.pointer_type(tl.int32))
    tl.store(y_ptr, tl.load(words))


def fails(match):
    return pytest.raises(InterpreterError, match=match)


def zeros(n, dtype=torch.float32):
    return torch.zeros(n, dtype=dtype)


def run(kernel, grid, *args, **options):
    kernel[grid](*args, **options)  # guarded, as all launches of these tests


@pytest.mark.parametrize("n", [15, 16, 17])
def test_what_stays_within_its_tensors_passes(n):
    run(copy, (triton.cdiv(n, 8),), torch.randn(n), zeros(n), n, n, BLOCK=8)


def test_an_element_too_many_is_found():
    with fails("load of 4 bytes outside all tensors"):
        run(copy, (2,), torch.randn(15), zeros(16), 15, 16, BLOCK=8)
    with fails("store of 4 bytes outside all tensors"):
        run(copy, (2,), torch.randn(16), zeros(15), 16, 16, BLOCK=8)


def test_programs_must_not_store_different_values_to_one_address():
    with fails("program .1, 0, 0.: stores where another program stored, in no order"):
        run(all_to_one, (2,), zeros(1, torch.int32))
    run(all_to_one, (1,), zeros(1, torch.int32))
    run(same_to_one, (2,), zeros(1, torch.int32))


def test_nor_must_lanes_of_one_store():
    with fails("different values to one address"):
        run(lanes_to_one, (1,), zeros(4, torch.int32))


def test_a_program_must_not_change_what_another_loads():
    with fails("stores what another program loads|loads what another program stored"):
        run(shift, (2,), torch.randn(16), 16, BLOCK=8)
    run(shift, (1,), torch.randn(16), 16, BLOCK=16)


def test_threads_meet_before_they_load_what_others_stored():
    with fails("no barrier between"):
        run(reversed_through_memory, (1,), torch.randn(8), zeros(8), HAS_BARRIER=False)
    run(reversed_through_memory, (1,), torch.randn(8), zeros(8), HAS_BARRIER=True)


def add_up(x, semantic, has_barrier=True):
    counter, total = zeros(1, torch.int32), zeros(1)
    options = {"SEMANTIC": semantic, "HAS_BARRIER": has_barrier}
    run(last_adds_up, (3,), x, zeros(3), counter, total, 3, **options)
    return total[0]


@pytest.mark.parametrize("semantic", ["relaxed", "release", "acquire"])
def test_weak_atomics_order_nothing(semantic):
    with fails("loads what another program stored, in no order"):
        add_up(torch.randn(3), semantic)


def test_what_was_released_may_be_loaded_by_who_acquires():
    x = torch.randn(3)
    torch.testing.assert_close(add_up(x, "acq_rel"), x.sum())


def test_threads_meet_before_one_of_them_releases():
    with fails("releases what others of its threads may not have stored"):
        add_up(torch.randn(3), "acq_rel", has_barrier=False)


def test_words_are_aligned():
    with fails("not a multiple"):
        run(odd_words, (1,), zeros(8, torch.uint8), zeros(1, torch.int32))
