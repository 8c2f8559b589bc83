"""Real grammars on a real engine with random weights: what ends is valid, come what may."""

import json
import random
import shutil
from typing import Any

import jsonschema
import pytest
from support.demo import DEMO_MODEL, tokenizer_json
from support.engine_driver import Collected, EngineDriver
from support.tiny_checkpoints import make_tiny_checkpoint
from tokenizers import Tokenizer

from pagoda_engine import EngineConfig, FinishReason, LoadedModel, SamplingParams, load_model
from pagoda_worker.grammars import Grammars

VOCAB_SIZE, EOS = 2048, 1
NUM_SEQUENCES = 12
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["castle", "ship", "crown"]},
        "size": {"type": "integer", "minimum": -9, "maximum": 999},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 4},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["kind", "size", "names", "next"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = json.dumps({"grammars": [{"json_schema": SCHEMA}]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Random weights with the demo's tokenizer: nothing in them knows what JSON is."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB_SIZE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    shutil.copy(DEMO_MODEL / "tokenizer.json", folder)
    return load_model(folder, EngineConfig(dtype="float32", max_model_len=512))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars.load(DEMO_MODEL, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


async def run(
    model: LoadedModel,
    grammars: Grammars,
    *,
    num_blocks: int,
    outputs: list[list[int]] | None = None,
    speculation: str = "off",
    **sampling: Any,
) -> tuple[EngineDriver, list[Collected]]:
    """Run sequences of one grammar, each with its own seed; `outputs` are of earlier attempts."""
    config = EngineConfig(
        block_size=4,
        num_blocks=num_blocks,
        max_model_len=400,
        max_num_seqs=8,
        speculation=speculation,
    )
    driver = EngineDriver(model, config)
    for i in range(NUM_SEQUENCES):
        draw = random.Random(i)
        driver.add(
            str(i),
            [draw.randrange(300, VOCAB_SIZE) for _ in range(draw.randrange(3, 30))],
            sampling=SamplingParams(max_tokens=300, seed=i, **{"temperature": 1.0, **sampling}),
            token_mask=await grammars.mask(GRAMMAR),
            output_token_ids=tuple(outputs[i]) if outputs else (),
        )
    found = driver.run()
    return driver, [found[str(i)] for i in range(NUM_SEQUENCES)]


async def test_what_ends_is_valid_also_when_blocks_are_short(
    model: LoadedModel, grammars: Grammars
) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json())
    calm, whole = await run(model, grammars, num_blocks=400)
    short, again = await run(model, grammars, num_blocks=84)
    assert calm.num_preempted == 0
    assert short.num_preempted > 0
    for sequence in whole:
        assert sequence.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(tokenizer.decode(sequence.token_ids)), SCHEMA)
    assert [s.token_ids for s in again] == [s.token_ids for s in whole]


async def test_another_attempt_goes_on_with_the_same_tokens(
    model: LoadedModel, grammars: Grammars
) -> None:
    _, whole = await run(model, grammars, num_blocks=400)
    for share in (0.1, 0.5, 0.9):
        begun = [s.token_ids[: int(share * len(s.token_ids))] for s in whole]
        _, rest = await run(model, grammars, num_blocks=400, outputs=begun)
        ends = [a + b.token_ids for a, b in zip(begun, rest, strict=True)]
        assert ends == [s.token_ids for s in whole], share


async def test_logprobs_change_no_token_and_forced_ones_save_steps(
    model: LoadedModel, grammars: Grammars
) -> None:
    plain, whole = await run(model, grammars, num_blocks=400)
    slow, explained = await run(model, grammars, num_blocks=400, num_logprobs=1)
    assert [s.token_ids for s in explained] == [s.token_ids for s in whole]
    assert all(len(s.logprobs) == len(s.token_ids) for s in explained)
    assert len(plain.results) < 0.8 * len(slow.results)


@pytest.mark.parametrize(  # each value beside each of the others
    ("num_blocks", "num_logprobs", "temperature"),
    [(400, None, 0.0), (400, 1, 0.6), (84, None, 0.6), (84, 1, 0.0)],
)
async def test_speculation_changes_no_output(
    model: LoadedModel,
    grammars: Grammars,
    num_blocks: int,
    num_logprobs: int | None,
    temperature: float,
) -> None:
    fields = {"num_blocks": num_blocks, "num_logprobs": num_logprobs, "temperature": temperature}
    _, expected = await run(model, grammars, **fields)
    driver, found = await run(model, grammars, **fields, speculation="ngram")
    for one, other in zip(found, expected, strict=True):
        assert (one.token_ids, one.logprobs, one.finish_reason) == (
            other.token_ids, other.logprobs, other.finish_reason,
        )  # fmt: skip
    assert sum(result.stats.num_accepted_tokens for result in driver.results) > 0
    assert driver.engine.num_free_blocks == num_blocks
