"""Beam search as a body asks for it: what it goes together with, how wide and long it may be."""

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.errors import InvalidRequestError, Problems
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output_options import OutputOptions

MAX_FRAME_TOKENS = 1 << 16
"""Tokens of all beams of a prompt, alternatives included: they come in one frame, of 13 bytes each
at most, and NATS takes 1 MiB unless told otherwise."""

_OFF = {
    "temperature": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "dry_multiplier": 0,
    "lz_penalty": 0,
}
_ABSENT = (
    "logit_bias", "allowed_token_ids", "bad_words", "logprob_token_ids", "repetition_detection",
)  # fmt: skip
_EARLY_STOPPING = {
    None: generate_pb2.EARLY_STOPPING_UNSPECIFIED,
    False: generate_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: generate_pb2.EARLY_STOPPING_AT_ONCE,
    "never": generate_pb2.EARLY_STOPPING_NEVER,
}


def check_beam_search(body: GenerationBody, options: OutputOptions, *, max_width: int) -> None:
    """Raise InvalidRequestError for a search that is too wide, or with what it cannot have.

    It follows the likeliest outputs of the model itself, so nothing may change what is likely.
    """
    if not options.is_search:
        return
    problems = Problems()
    for name, off in _OFF.items():
        value = getattr(body, name)
        with problems:
            if value is not None and value != off:
                raise InvalidRequestError(
                    f"'{name}' is {value}; with use_beam_search it must be {off}, or absent",
                    param=name,
                )
    for name in _ABSENT:
        with problems:
            if getattr(body, name):
                raise InvalidRequestError(
                    f"'{name}' is not supported with use_beam_search; leave it out", param=name
                )
    with problems:
        if options.num_scored_logprobs is not None:
            raise InvalidRequestError(
                "log probabilities of the prompt ('prompt_logprobs', or 'echo' with 'logprobs') "
                "are not supported with use_beam_search; ask for them alone",
                param="logprobs" if options.num_prompt_logprobs is None else "prompt_logprobs",
            )
    with problems:
        if options.num_choices > max_width:
            field = options.num_choices_field
            raise InvalidRequestError(
                f"'{field}' is {options.num_choices}; with use_beam_search it is the number of "
                f"beams, which can be {max_width} at most",
                param=field,
            )
    problems.raise_all()


def check_grammar(grammar: str, options: OutputOptions) -> None:
    """Raise InvalidRequestError for a search whose output would have to follow a grammar."""
    if grammar and options.is_search:
        raise InvalidRequestError(
            "'use_beam_search' is not supported with what binds the output: tools, "
            "response_format, structured_outputs or guided_*; leave one of them out",
            param="use_beam_search",
        )


def most_tokens(options: OutputOptions) -> int:
    """Return how many tokens each output of a search may have at most."""
    num_alternatives = 0 if options.num_logprobs is None else 1 + options.num_logprobs
    return MAX_FRAME_TOKENS // (options.num_choices * (1 + num_alternatives))


def beam_search(body: GenerationBody, options: OutputOptions) -> generate_pb2.BeamSearch:
    """Return what the engine is told, where the body asks for a search."""
    return generate_pb2.BeamSearch(
        width=options.num_choices,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=_EARLY_STOPPING[body.early_stopping],
    )
