"""What a body cannot have beside `use_beam_search`, and how wide a search may be.

A search follows the likeliest outputs of the model itself, so nothing may change what is likely.
"""

from typing import Any

from pagoda_gateway.errors import InvalidRequestError

OFF = {
    "temperature": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "dry_multiplier": 0,
    "lz_penalty": 0,
}
"""Fields that may be there with this value alone."""
ABSENT = (
    "logit_bias", "allowed_token_ids", "bad_words", "logprob_token_ids", "repetition_detection",
)  # fmt: skip


def check_beside(name: str, value: Any) -> None:
    """Raise InvalidRequestError unless this field of OFF or ABSENT changes nothing."""
    if name in OFF:
        if value is not None and value != OFF[name]:
            raise InvalidRequestError(
                f"'{name}' is {value}; with use_beam_search it must be {OFF[name]}, or absent",
                param=name,
            )
    elif value:
        raise InvalidRequestError(
            f"'{name}' is not supported with use_beam_search; leave it out", param=name
        )


def check_width(name: str, width: int | None, max_width: int) -> None:
    """Raise InvalidRequestError if the field asks for more beams than there may be; None: one."""
    if width is not None and width > max_width:
        raise InvalidRequestError(
            f"'{name}' is {width}; with use_beam_search it is the number of beams, which can be "
            f"{max_width} at most",
            param=name,
        )


def check_scored_logprobs(name: str, num_logprobs: int | None) -> None:
    """Raise InvalidRequestError if the field asks for log probabilities of the prompt."""
    if num_logprobs is not None:
        raise InvalidRequestError(
            "log probabilities of the prompt ('prompt_logprobs', or 'echo' with 'logprobs') are "
            "not supported with use_beam_search; ask for them alone",
            param=name,
        )
