"""Beam search as a body asks for it: how long it may be, and what the engine is told."""

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output.options import OutputOptions

MAX_FRAME_TOKENS = 1 << 16
"""Tokens of all beams of a prompt, alternatives included: they come in one frame, of 13 bytes each
at most, and NATS takes 1 MiB unless told otherwise."""

_EARLY_STOPPING = {
    None: generate_pb2.EARLY_STOPPING_UNSPECIFIED,
    False: generate_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: generate_pb2.EARLY_STOPPING_AT_ONCE,
    "never": generate_pb2.EARLY_STOPPING_NEVER,
}


def check_grammar(grammar: str, options: OutputOptions) -> None:
    """Raise InvalidRequestError for a search whose output would have to follow a grammar."""
    if grammar and options.is_search:
        raise InvalidRequestError(
            "'use_beam_search' is not supported with what binds the output: tools, "
            "response_format, structured_outputs, regex, ebnf or guided_*; leave one out",
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
