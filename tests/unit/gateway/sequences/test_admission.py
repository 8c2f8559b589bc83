"""Slots are shared: whoever comes last finds some free."""

import contextlib

import pytest

from pagoda_gateway.errors import OverloadedError, UnavailableError
from pagoda_gateway.sequences.admission import Admission


def take_all(admission: Admission, tenant: str, stack: contextlib.ExitStack) -> int:
    """Take slots until one is refused; return how many."""
    for count in range(10_000):
        try:
            stack.enter_context(admission.slot(tenant))
        except (OverloadedError, UnavailableError):
            return count
    raise AssertionError("no end of slots")


def test_one_tenant_leaves_a_fifth_to_others() -> None:
    admission = Admission(100)
    with contextlib.ExitStack() as stack:
        assert take_all(admission, "greedy", stack) == 80
        with pytest.raises(OverloadedError) as caught:
            admission.check("greedy")
        assert caught.value.headers() == {"retry-after": "1"}
        assert take_all(admission, "other", stack) > 10
    assert admission.num_requests == 0
    admission.check("greedy")


def test_one_slot_can_be_taken() -> None:
    admission = Admission(1)
    with admission.slot("a"), pytest.raises(UnavailableError):
        admission.check("b")
