"""The policy file that docs/howto/safety.md shows is one."""

import re
from pathlib import Path

import yaml

from pagoda_gateway.safety.patterns.text_filter import TextRules
from pagoda_gateway.safety.policies.file import SafetyFile
from pagoda_gateway.safety.policies.policy import _named

HOWTO = Path(__file__).parents[4] / "docs" / "howto" / "safety.md"


def test_its_example_is_valid_and_does_what_it_says() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", HOWTO.read_text(), re.S)
    (file,) = [SafetyFile.model_validate(yaml.safe_load(block)) for block in blocks]
    bank = file.policies[0]
    rules = TextRules([_named(rule) for rule in bank.rules if rule.deny])
    found: list[tuple[str, str]] = []
    filtered = rules.new_filter(lambda rule, action: found.append((rule, action)))
    out = filtered.push("4111 1111 1111 1111, no guaranteed returns, but a guaranteed profit!")
    assert out + filtered.flush() == "[card], no guaranteed returns, but a "
    assert sorted(found) == [("advice", "block"), ("cards", "redact")]
