"""Classes of labelled cases: mutated prompts made of real documents, each among other requests."""

import pytest
from support.prefix_cases.case import NOTHING
from support.prefix_cases.scores import MAKERS, scored

from pagoda_gateway.accounts.prefixes.kinds import ADVICE, KINDS

SEED = 20261122
NUM_OF_EACH = 40
MIN_SHARE = 0.9


@pytest.mark.slow
def test_every_class_is_found_and_given_to_no_other() -> None:
    score = scored(SEED, NUM_OF_EACH)
    print(f"seed {SEED}\n{score.table()}")
    labels = {pair[0] for pair in score.pairs}
    assert labels == {*KINDS, NOTHING} - {"other_adapter"}  # there are none yet
    assert len(labels) == len(MAKERS)
    for label in labels:
        assert score.recall(label) >= MIN_SHARE, f"recall of {label}\n{score.table()}"
        assert score.precision(label) >= MIN_SHARE, f"precision of {label}\n{score.table()}"


def test_every_class_has_advice() -> None:
    assert set(ADVICE) == set(KINDS)
