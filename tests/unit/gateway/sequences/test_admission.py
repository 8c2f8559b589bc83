"""Slots are shared: whoever comes last finds some free."""

import contextlib
from dataclasses import dataclass

import pytest

from pagoda_gateway.errors import OverloadedError, UnavailableError
from pagoda_gateway.sequences.admission import LATELY_SECONDS, Admission
from pagoda_gateway.sequences.request import RequestIdentity, ServiceTier


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


def test_half_of_the_slots_are_not_for_the_background() -> None:
    admission = Admission(4)
    assert admission.background_room(8) == 8
    with admission.slot("a"):
        assert admission.background_room(8) == 8
        with admission.slot("b"):
            assert admission.background_room(8) == 0
    admission.stop()
    assert admission.background_room(8) == 0


@dataclass(frozen=True, eq=False)
class Running:
    """A generation, as far as admission looks at one."""

    identity: RequestIdentity
    ttft_seconds: float | None = None


@pytest.mark.parametrize(
    ("tier", "ttft", "room"),
    [("default", None, 0), ("default", 0.1, 2), ("batch", None, 8), ("batch", 0.1, 8)],
)
def test_little_runs_in_the_background_beside_others(
    tier: ServiceTier, ttft: float | None, room: int
) -> None:
    now = 100.0
    admission = Admission(4, lambda: now)
    identity = RequestIdentity(
        "r", "r", "o", "completions", "t", "k", 0.0, 0.0, priority=0, service_tier=tier
    )
    with admission.tracked(Running(identity, ttft)):  # type: ignore[arg-type]
        assert admission.background_room(8) == room
        assert admission.background_room(1) == min(room, 1)
    now += LATELY_SECONDS - 1
    assert admission.background_room(8) == (2 if tier == "default" else 8)
    now += 1
    assert admission.background_room(8) == 8
