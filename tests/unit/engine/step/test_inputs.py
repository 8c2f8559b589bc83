from support.bare_sequence import bare_sequence

from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.step.inputs import flatten


def test_a_decode_that_does_not_reach_its_last_token_has_no_logits() -> None:
    """A grammar has forced two tokens, and the step had room for one."""
    plain, forced = bare_sequence([0]), bare_sequence([1])
    plain.token_ids, forced.token_ids = [1, 2], [1, 3, 4]
    cut = ScheduledSequence(forced, 1, 1, is_prefill=False, samples=False)
    inputs = flatten([*ScheduledSequence.of_decodes([plain]), cut])
    assert inputs.token_ids == [1, 3]
    assert inputs.logit_rows == [0]
