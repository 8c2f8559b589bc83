"""The policy file: what is wrong in it is named; who is meant by which policy."""

from pathlib import Path

import pytest

from pagoda_gateway.safety.policies.file import SafetyFile, SafetyFileError, read_safety_file
from pagoda_gateway.safety.policies.policies import Policies


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "safety.yaml"
    path.write_text(text)
    return path


def rule(fields: str) -> str:
    return f"policies: [{{name: p, tenants: ['*'], rules: [{{name: r, {fields}}}]}}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policies: [", "is not YAML"),
        ("rules: []", "rules: there is no such field"),
        ("policies: [{name: p}]", "policies[0].tenants: Field required"),
        (
            rule("action: block, deny: [good, 'a*']"),
            "policies[0].rules[0].deny[1]: '*' at character 2 has no upper bound",
        ),
        (rule("action: block, deny: ['(']"), "RE2 cannot compile it: missing )"),
        (rule("action: burn, deny: [a]"), "policies[0].rules[0].action: Input should be 'block'"),
        (rule("action: block"), "give either 'deny', a list of patterns, or 'moderator'"),
        (rule("action: redact, moderator: m"), "a moderator judges whole texts"),
        (rule("action: block, moderator: m"), "names the moderator 'm'; 'moderators' has none"),
        (rule("action: redact, deny: [a], replacement: '\"'"), "rules[0].replacement"),
        (rule("action: block, deny: [a]").replace("r,", "r, where: [], "), "rules[0].where"),
        (
            "policies: [{name: p, tenants: [a]}, {name: p, tenants: [b]}]",
            "policies need names of their own",
        ),
        (
            "moderators: {m: {kind: http, url: 'http://x', window_chars: 100}}",
            "overlap_chars is 200; it must be below window_chars 100",
        ),
        (
            "moderators: {m: {kind: classifier, folder: /x}}\n"
            + rule("action: block, moderator: m"),
            "needs 'thresholds'",
        ),
        (rule("action: block, deny: [" + "a, " * 1001 + "b]"), "there are 1002 patterns"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SafetyFileError) as raised:
        read_safety_file(written(tmp_path, text))
    assert said in str(raised.value)
    assert str(tmp_path / "safety.yaml") in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SafetyFileError, match="cannot be read: No such file"):
        read_safety_file(tmp_path / "none.yaml")


def test_patterns_that_are_too_large_together(tmp_path: Path) -> None:
    large = "(?:[a-z]{30}[0-9]{30}){15}\\pL{90}"
    text = rule(f"action: block, deny: [{', '.join([repr(large)] * 1000)}]")
    with pytest.raises(
        SafetyFileError, match="policy 'p' together: RE2 cannot compile it: pattern too large"
    ):
        Policies(read_safety_file(written(tmp_path, text.replace("'(", '"(').replace("}'", '}"'))))


def test_the_first_policy_that_fits_applies() -> None:
    file = SafetyFile.model_validate(
        {
            "policies": [
                {"name": "one", "tenants": ["a"], "models": ["small"]},
                {"name": "two", "tenants": ["a", "b"]},
                {"name": "all", "tenants": ["*"], "models": ["large"]},
            ]
        }
    )
    policies = Policies(file)

    def name_of(tenant: str, model: str) -> str | None:
        policy = policies.of(tenant, model)
        return policy.name if policy else None

    assert name_of("a", "small") == "one"
    assert name_of("a", "large") == "two"
    assert name_of("b", "small") == "two"
    assert name_of("c", "large") == "all"
    assert name_of("c", "small") is None
    assert Policies(SafetyFile()).of("a", "small") is None
