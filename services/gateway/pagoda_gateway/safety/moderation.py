"""Answers of /v1/moderations: what a tenant's policy says of texts, with nothing done about it."""

import asyncio
from typing import Any

from pagoda_gateway.safety.moderators.base import Judgement
from pagoda_gateway.safety.policies.policy import ModeratedRule, Policy


async def moderation_result(policy: Policy, text: str) -> dict[str, Any]:
    """Return OpenAI's result for a text: pattern rules by their names, and moderators' categories.

    Raises:
        UnavailableError: a moderator cannot judge, and what it cannot judge is refused.
    """
    scores = await asyncio.to_thread(_pattern_scores, policy, text)
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


def _pattern_scores(policy: Policy, text: str) -> dict[str, float]:
    rules = policy.single_patterns.items()
    return {name: float(patterns.matches(text)) for name, patterns in rules}


def _reached(rule: ModeratedRule, judgement: Judgement) -> set[str]:
    thresholds = rule.settings.thresholds
    if not thresholds:
        return set(judgement.flagged)
    return {name for name, least in thresholds.items() if judgement.scores.get(name, 0.0) >= least}
