"""Answers of /v1/moderations: what a tenant's policy says of texts, with nothing done about it."""

from typing import Any

from pagoda_gateway.safety.findings import Action
from pagoda_gateway.safety.moderators.base import Judgement
from pagoda_gateway.safety.patterns.text_filter import TextRules
from pagoda_gateway.safety.policies.policy import ModeratedRule, Policy


async def moderation_result(policy: Policy, text: str) -> dict[str, Any]:
    """Return OpenAI's result for a text: pattern rules by their names, and moderators' categories.

    Raises:
        UnavailableError: a moderator cannot judge, and what it cannot judge is refused.
    """
    scores = {
        name: float(_matches(patterns, text)) for name, patterns in policy.single_patterns.items()
    }
    flagged = {name for name, score in scores.items() if score}
    asked: dict[str, list[Judgement]] = {}
    for rule in policy.all_moderated:
        moderator = rule.moderator
        if moderator.name not in asked:
            asked[moderator.name] = await moderator.judge(moderator.windows(text))
        for judgement in asked[moderator.name]:
            for name, score in judgement.scores.items():
                scores[name] = max(scores.get(name, 0.0), score)
            flagged |= _reached(rule, judgement)
    return {
        "flagged": bool(flagged),
        "categories": {name: name in flagged for name in scores},
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


def _matches(patterns: TextRules, text: str) -> bool:
    found: list[Action] = []
    filtered = patterns.new_filter(lambda _, action: found.append(action))
    filtered.push(text)
    filtered.flush()
    return bool(found)


def _reached(rule: ModeratedRule, judgement: Judgement) -> set[str]:
    thresholds = rule.settings.thresholds
    if not thresholds:
        return set(judgement.flagged)
    return {name for name, least in thresholds.items() if judgement.scores.get(name, 0.0) >= least}
