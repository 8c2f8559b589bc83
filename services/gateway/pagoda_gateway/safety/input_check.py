"""The pattern rules on one body: what they replace, and what they refuse."""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from pagoda_gateway.errors import ContentPolicyError, InvalidRequestError
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.safety.findings import Action
from pagoda_gateway.safety.input_texts import rewritten
from pagoda_gateway.safety.patterns.text_filter import Note, TextRules

Body = TypeVar("Body", bound=GenerationBody)
Normalize = Callable[[str], str]

MAX_LOOKS = 65_536  # texts and numbers of one request: each costs some microseconds
NAMED_FIELDS = ("tools", "documents", "chat_template_kwargs")  # one name each in every API
MAX_MATCHES = 2000  # that are replaced in one request: each costs some microseconds a rule


class InputCheck:
    """Looks at texts; see `input_texts.Check`."""

    def __init__(
        self,
        patterns: TextRules,
        note: Note,
        refusal: Callable[[str, str], ContentPolicyError],
        param: str,
        normalize: Normalize | None,
    ) -> None:
        """Start.

        Args:
            patterns: the rules.
            note: hears of those that match.
            refusal: returns what is said of a rule that refuses a field.
            param: the field that has the prompt.
            normalize: makes of a text what tokens are made of; None: they are made of the text.
        """
        self._patterns = patterns
        self._note_match = note
        self._refusal = refusal
        self._param = param
        self._field = param  # that is looked at
        self._normalize = normalize
        self._rule = ""  # that matched last
        self._num_matches = 0
        self._num_looks = 0

    def look(self, body: Body, decoded: Sequence[str]) -> Body:
        """Return the body as the model may see it; `decoded` are its prompts of token ids.

        Raises:
            ContentPolicyError: a rule refuses it.
        """
        self.see_all(decoded)
        return rewritten(body, self)

    def see_all(self, texts: Sequence[str]) -> None:
        """Look at texts that are tokens already: others would be another prompt.

        Raises:
            ContentPolicyError: a rule refuses one.
        """
        for text in texts:
            self.see(text, text)

    def enter(self, field: str) -> None:
        """Name this field, if a text of it is refused."""
        self._field = field if field in NAMED_FIELDS else self._param

    def rewrite(self, text: str) -> str:
        """Return what the model may see of a text; the same object if that is all of it."""
        allowed = self._filtered(text)
        self._see_normalized(text, allowed)
        return allowed

    def see(self, text: str, allowed: str) -> None:
        """Refuse what a rule would have to change, or to change in a way that `allowed` is not."""
        self._see(text, allowed)
        self._see_normalized(text, allowed)

    def _see_normalized(self, text: str, allowed: str) -> None:
        if self._normalize is not None and (normal := self._normalize(text)) != text:
            self._see(normal, self._normalize(allowed))

    def _see(self, text: str, allowed: str) -> None:
        # What stands for a match may be one itself: once replaced it is not looked at again.
        if self._filtered(text) not in (text, allowed) and self._filtered(allowed) != allowed:
            self._refuse()

    def _filtered(self, text: str) -> str:
        self._num_looks += 1
        if self._num_looks > MAX_LOOKS:
            raise InvalidRequestError(
                f"'{self._param}' and what is shown with it have more than {MAX_LOOKS} texts and "
                "numbers, the limit where rules look at them; send less at once",
                param=self._param,
            )
        if not self._patterns.may_match(text):
            return text
        filtered = self._patterns.new_filter(self._note)
        allowed = filtered.push(text)
        allowed += filtered.flush()
        if filtered.is_blocked:
            self._refuse()
        return text if allowed == text else allowed

    def _refuse(self) -> NoReturn:
        raise self._refusal(self._rule, self._field)

    def _note(self, rule: str, action: Action) -> None:
        self._num_matches += 1
        if self._num_matches > MAX_MATCHES:
            raise InvalidRequestError(
                f"rules match '{self._param}' more than {MAX_MATCHES} times; send less of that",
                param=self._param,
            )
        if action != "flag":
            self._rule = rule
        self._note_match(rule, action)
