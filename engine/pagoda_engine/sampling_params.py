"""How the next token of a sequence is chosen. A value; the sampler reads it, nobody changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Search for the likeliest outputs, in place of choosing one token after the other.

    Attributes:
        width: outputs that are followed at a time, and returned in the end; >= 1.
        length_penalty: an output's score is its log probability divided by its length to this
            power, so that above 0 longer ones gain and below 0 shorter ones.
        early_stopping: as in transformers. True: the search ends with the first `width` outputs
            that have ended. False: once none that goes on scores more as it is than the worst of
            those. "never": once none can come to score more.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Order of application: penalties, bias, temperature, truncation, softmax, draw.

    Truncation is top-n-sigma, top-k, typical-p, top-p, min-p, XTC, each of what those before left.
    The random number of output index i is a function of (seed, i) alone, so batching, preemption
    and failover do not change what is drawn.

    Attributes:
        max_tokens: output tokens at most, counted from output index 0; >= 1, or 0 where prompt
            logprobs or an embedding are all that is asked for.
        min_tokens: no stop token is chosen before this many output tokens, unless a grammar leaves
            nothing else.
        temperature: 0 means greedy.
        top_k: keep the k likeliest; 0 = off.
        top_p: keep the smallest set with this probability; 1 = off.
        min_p: drop what is less likely than min_p times the likeliest; 0 = off.
        repetition_penalty: > 0, over prompt and output tokens (CTRL, arXiv 1909.05858); 1 = off.
        frequency_penalty: times the count in the output, subtracted from the logit; 0 = off.
        presence_penalty: once for each token in the output, subtracted from the logit; 0 = off.
        top_n_sigma: drop logits more than so many standard deviations below the largest; 0 = off.
        typical_p: keep the smallest set with this probability whose information is next to the
            entropy; 1 = off.
        xtc_threshold: where XTC is on, of the tokens that are this likely or more only the least
            likely is kept.
        xtc_probability: of XTC being on at a token, by a coin that hangs on the seed and the output
            index; 0 = off.
        dry_multiplier: DRY's penalty for the token that would repeat `dry_allowed_length` tokens
            and one more, over prompt and output; 0 = off.
        dry_base: what it is multiplied by for each token more; >= 1.
        dry_allowed_length: in [1, 50].
        dry_sequence_breakers: tokens that end every repetition.
        lz_penalty: times the bits that an LZ77 code of prompt and output would save on a token,
            subtracted from its logit; 0 = off.
        logit_bias: token id -> added to its logit.
        seed: unsigned 64 bit.
        num_logprobs: alternatives returned for each token; None = no logprobs at all.
        logprob_token_ids: logprobs of these tokens are returned in place of the likeliest; needs
            num_logprobs.
        num_prompt_logprobs: alternatives returned for each prompt token but the first; None = no
            logprobs of the prompt at all. No cached block is used then: their logits are gone.
        stop_token_ids: end the output (beside the model's EOS, which ignore_eos switches off).
        ignore_eos: the model's EOS does not end the output.
        allowed_token_ids: no other token is chosen; empty = all. What a grammar forces comes all
            the same.
        bad_words: sequences of tokens; the last token of one is not chosen where the output ends
            with those before it. Each token must be known before the next, as with a grammar.
        embed: the prompt's embedding is returned, and no token; needs max_tokens 0.
        beam_search: None = off. With it the temperature is 0, and nothing else changes logits.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_threshold: float = 0.0
    xtc_probability: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.0
    dry_allowed_length: int = 1
    dry_sequence_breakers: tuple[int, ...] = ()
    lz_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    num_prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    embed: bool = False
    beam_search: BeamSearchParams | None = None
