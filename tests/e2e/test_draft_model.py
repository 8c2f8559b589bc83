"""The whole stack with a draft model says what it says without, and receipts count its tokens."""

import shutil
from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 120
PROMPTS = ["ROMEO:\nGood morrow", "What news from the king"]


def answers(stack: Stack) -> tuple[list[str], int]:
    """Return what the stack streams, and how many tokens its receipts say were accepted."""
    texts, num_accepted = [], 0
    client = stack.openai()
    with stack.http() as http:
        for number in range(24):
            stream = client.completions.with_raw_response.create(
                model=stack.model,
                prompt=PROMPTS[number % 2],
                max_tokens=MAX_TOKENS,
                temperature=1.0,
                seed=number,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            chunks = list(stream.parse())
            texts.append("".join(c.choices[0].text for c in chunks if c.choices))
            request_id = stream.headers["x-request-id"]
            receipt = http.get(f"/v1/receipts/{request_id}").json()
            num_accepted += receipt["speculation"]["accepted_tokens"]
    return texts, num_accepted


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is drawn without speculation, in one topology: it is the same in the other."""
    off = {
        "PAGODA_TOPOLOGY": "aggregated",
        "PAGODA_DTYPE": "float32",
        "PAGODA_SPECULATION": "off",
    }
    with running_stack(tmp_path_factory.mktemp("off"), off) as stack:
        texts, num_accepted = answers(stack)
    assert num_accepted == 0
    return texts


@pytest.mark.parametrize("topology", ["disaggregated", "aggregated"])
def test_a_draft_changes_no_text_and_is_counted(
    tmp_path: Path, topology: str, expected: list[str]
) -> None:
    """The draft is the model itself: always right about what is drawn, though it hardly pays.

    So at least what it is asked now and then, to find out, is accepted.
    """
    draft = shutil.copytree(DEMO_MODEL, tmp_path / "draft")
    drafted = {
        "PAGODA_TOPOLOGY": topology,
        "PAGODA_DTYPE": "float32",
        "PAGODA_DRAFT_MODEL": str(draft),
    }
    with running_stack(tmp_path / "drafted", drafted) as stack:
        found, num_accepted = answers(stack)
        seconds = stack.metric("decode", "pagoda_speculation_draft_seconds_total")
        accepted = stack.metric("decode", "pagoda_speculation_accepted_tokens_total")
    assert found == expected
    assert num_accepted == accepted > 0
    assert seconds > 0.0
