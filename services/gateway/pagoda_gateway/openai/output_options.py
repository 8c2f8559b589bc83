"""Options of the output, from a body whose fields are checked; needs no model."""

from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.repetition import Repetition


def output_options(body: GenerationBody, *, num_logprobs: int | None) -> OutputOptions:
    """Return what the body asks of the output."""
    stop = body.stop or ()
    if body.logprob_token_ids:  # in place of the likeliest; asks for logprobs by itself
        num_logprobs = len(body.logprob_token_ids)
    return OutputOptions(
        num_choices=body.n or 1,
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        include_stop=bool(body.include_stop_str_in_output),
        num_logprobs=num_logprobs,
        min_tokens=body.min_tokens or 0,
        skip_special_tokens=body.skip_special_tokens is not False,
        return_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        num_prompt_logprobs=body.prompt_logprobs,
        is_search=bool(body.use_beam_search),
        repetition=_repetition(body),
    )


def _repetition(body: GenerationBody) -> Repetition | None:
    wanted = body.repetition_detection
    if wanted is None or not wanted.max_pattern_size:
        return None
    return Repetition(max(1, wanted.min_pattern_size), wanted.max_pattern_size, wanted.min_count)
