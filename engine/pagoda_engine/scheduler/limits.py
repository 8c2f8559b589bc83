"""What limits how many tokens of a prompt a step computes, and how many proposed ones it verifies.

Counted for each sequence, for its trace. Knows words and counts.
"""

END_OF_PROMPT, STEP_TOKENS, TENANT_SHARE = "end_of_prompt", "step_tokens", "tenant_share"
BLOCKS, STEP_TIME = "blocks", "step_time"
"""A chunk ends with its prompt, with the tokens that a step may have, or that its tenant has of
this step; where no more blocks are free; or where decodes beside it would wait too long."""

SETTING, NOTHING_FOUND, ACCEPTANCE, LOAD = "setting", "nothing_found", "acceptance", "load"
GRAMMAR, END_OF_OUTPUT, ROOM, DRAFT = "grammar", "end_of_output", "room", "draft"
"""A proposal has as many tokens as are set; or nobody knows more; or more are too seldom right; or
in such a batch none is worth its row, or has one; or the grammar allows no more, or says which; or
the output ends; or rows, slots or time are others'; or a draft's forwards take longer than it
saves."""

Limits = dict[str, int]
"""How often each has limited something; what never has is missing."""


def count(limits: Limits, limit: str, number: int = 1) -> None:
    """Count so many more, or fewer: then maybe none is left."""
    if number := limits.get(limit, 0) + number:
        limits[limit] = number
    else:
        del limits[limit]
