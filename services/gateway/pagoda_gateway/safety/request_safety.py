"""One request under its tenant's policy: its texts checked, its outputs guarded, what was found."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pagoda_gateway.errors import ContentPolicyError, UnsupportedFieldError
from pagoda_gateway.openai.request_processor import ProcessedRequest
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.safety.findings import Action, Direction, Findings
from pagoda_gateway.safety.input_check import InputCheck, Normalize
from pagoda_gateway.safety.input_texts import prompt_tokens
from pagoda_gateway.safety.output_guard import OutputGuard
from pagoda_gateway.safety.policies.policy import Policy
from pagoda_gateway.safety.said_texts import is_small, said_texts

Body = TypeVar("Body", bound=GenerationBody)
TextOf = Callable[[Sequence[int]], Awaitable[str]]
Apart = Callable[[Callable[[], Any]], Awaitable[Any]]

INLINE_CHARS = 64 * 1024  # more are looked through in a thread


class RequestSafety:
    """What a request that has a policy goes through.

    Attributes:
        policy: that applies.
        findings: rules that have matched so far.
    """

    def __init__(self, policy: Policy, apart: Apart) -> None:
        """Begin; `apart` does what takes long off the event loop, when it is the tenant's turn."""
        self.policy = policy
        self._apart = apart
        self.findings = Findings(policy.name)
        self._guards: list[OutputGuard] = []
        self._unjudged = ""  # what the moderators are to judge of the input
        self._prompt_field = ""
        self._check: InputCheck | None = None  # that has looked at the body

    async def checked(self, body: Body, text_of: TextOf, normalize: Normalize | None) -> Body:
        """Return the body as the model may see it by rules of patterns; `judged` asks moderators.

        `text_of` decodes prompts sent as token ids; for `normalize` see `InputCheck`.

        Raises:
            ContentPolicyError: a rule refuses it.
        """
        rules = self.policy.input
        if rules.is_empty:
            return body
        decoded = [await text_of(token_ids) for token_ids in prompt_tokens(body)]
        note, param = partial(self.note, "input"), body.prompt_field
        self._check = InputCheck(rules.patterns, note, self.refusal, param, normalize)
        look = partial(self._looked_at, self._check, body, decoded)
        is_little = is_small([body, decoded], INLINE_CHARS)
        checked: Body = look() if is_little else await self._apart(look)
        return checked

    def _looked_at(self, check: InputCheck, body: Body, decoded: Sequence[str]) -> Body:
        body = check.look(body, decoded)
        if self.policy.input.moderated:
            self._unjudged = "\n".join([*said_texts(body), *decoded])
            self._prompt_field = body.prompt_field
        return body

    async def see_cut(self, texts: Sequence[str]) -> None:
        """Look once more at what is left of prompts that were cut after `checked`.

        Raises:
            ContentPolicyError: a rule refuses one: what made it harmless is gone.
        """
        if self._check is not None:
            look = partial(self._check.see_all, texts)
            await self._apart(look) if sum(map(len, texts)) > INLINE_CHARS else look()

    @property
    def is_judged(self) -> bool:
        """Whether no moderator needs to be asked about the input (any more)."""
        return not self._prompt_field

    async def judge(self) -> None:
        """Ask the moderators about what `checked` has let through.

        Apart from it, so that a request is within its limits before anybody is asked: moderators
        cost time and money.

        Raises:
            ContentPolicyError: a rule refuses it.
            UnavailableError: a moderator cannot judge, and what it cannot judge is refused.
        """
        text, param = self._unjudged, self._prompt_field
        self._unjudged = self._prompt_field = ""
        if not param:
            return
        refused = await self.policy.input.first_refused([text], partial(self.note, "input"))
        if refused is not None:
            raise self.refusal(refused.rule, param)

    def guarded(self, processed: ProcessedRequest) -> ProcessedRequest:
        """Return the request with its outputs guarded: `guard` has each one's.

        Raises:
            UnsupportedFieldError: it wants of its output what the rules cannot hold back.
        """
        rules, options, form = self.policy.output, processed.options, processed.form
        if rules.is_empty or options.embed:
            return processed
        if rules.holds_back and (options.num_logprobs is not None or options.return_token_ids):
            param = "logprobs" if options.num_logprobs is not None else "return_token_ids"
            raise UnsupportedFieldError(
                f"'{param}' names tokens whose text the policy {self.policy.name!r} may hold back; "
                "leave it out",
                param=param,
            )
        note, echoed = partial(self.note, "output"), processed.echo_texts
        for index in range(len(processed.sampling)):
            parser = form.new_parser() if form.new_parser is not None else None
            before = "" if echoed is None else echoed[index // options.num_choices]
            self._guards.append(OutputGuard(rules, parser, note, echoed=before))
        if form.new_parser is None:
            return processed
        parsers = iter([guard.parser for guard in self._guards])  # asked for in this order
        return replace(processed, form=replace(form, new_parser=lambda: next(parsers)))

    def guard(self, index: int) -> OutputGuard | None:
        """Return the guard of one sequence; None if no rule is for outputs."""
        return self._guards[index] if self._guards else None

    def note(self, direction: Direction, rule: str, action: Action) -> None:
        """Remember that a rule has matched."""
        self.findings.note(rule, action, direction)

    def refusal(self, rule: str, param: str) -> ContentPolicyError:
        """Return what a client hears whose text a rule refuses."""
        return ContentPolicyError(
            f"rule {rule!r} of the policy {self.policy.name!r} refuses '{param}'; change it",
            param=param,
        )
