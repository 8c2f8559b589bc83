"""A draft model changes how many steps an output takes, and nothing else of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.automaton_mask import AutomatonMask
from support.engine_driver import Collected, EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_checkpoints import make_tiny_checkpoint
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import (
    BeamSearchParams,
    EngineConfig,
    KvSource,
    LoadedModel,
    SamplingParams,
    StepCost,
    load_model,
)

LONG = greedy(60, num_logprobs=1)
DRAWN = SamplingParams(max_tokens=60, temperature=0.7, seed=5, ignore_eos=True, num_logprobs=0)
CHEAP = StepCost(8.0, 1.0, 0.35, 0.05, is_seconds=True)
"""Steps that take so long that whatever is drafted pays, if it may be right."""


def drafting(
    model: LoadedModel, draft: LoadedModel, *, cost: StepCost = CHEAP, **fields: object
) -> EngineDriver:
    """Return an engine in which nothing else than the draft finds anything."""
    queue = {"queue": fields.pop("queue")} if "queue" in fields else {}
    values = {"block_size": 4, "num_blocks": 32, "max_model_len": 100, "speculation": "ngram"}
    config = EngineConfig(**{**values, **fields})
    driver = EngineDriver(model, config, draft=draft, **queue)
    driver.engine.set_step_cost(cost)
    return driver


def collected(driver: EngineDriver, prompt: list[int], **fields: object) -> Collected:
    driver.add("a", prompt, **fields)
    return driver.run()["a"]


def assert_equal(found: Collected, expected: Collected) -> None:
    """Bit for bit."""
    for name in ("first_index", "token_ids", "logprobs", "finish_reason", "matched_stop_token_id"):
        assert getattr(found, name) == getattr(expected, name), name


def total(driver: EngineDriver, name: str) -> float:
    return sum(getattr(result.stats, name) for result in driver.results)


def num_free(driver: EngineDriver) -> tuple[int, int]:
    assert driver.engine.drafter is not None
    return driver.engine.num_free_blocks, driver.engine.drafter.num_free_blocks


@pytest.fixture(scope="session")
def noisy_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with some noise: a draft that is mostly right."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("noisy"), "llama")
    tensors = load_file(tiny_folder / "model.safetensors")
    torch.manual_seed(3)
    noisy = {name: t + 0.03 * t.std() * torch.randn_like(t) for name, t in tensors.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def noisy_model(noisy_folder: Path) -> LoadedModel:
    return load_model(noisy_folder, EngineConfig(dtype="float32", max_model_len=512))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model of another family that says other things."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("stranger"), "qwen2")
    return load_model(folder, EngineConfig(dtype="float32", max_model_len=512))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "sampling",
    [
        LONG,
        DRAWN,
        replace(DRAWN, top_k=3, top_p=0.9, min_p=0.01),
        greedy(60, allowed_token_ids=tuple(range(40))),
        greedy(60, logit_bias=dict.fromkeys(range(30, 40), 5.0), min_tokens=9),
    ],
    ids=["greedy", "drawn", "truncated", "allowed", "biased"],
)
def test_output_is_bitwise_the_same(
    tiny_folder: Path, noisy_folder: Path, dtype: str, sampling: SamplingParams
) -> None:
    config = EngineConfig(dtype=dtype, max_model_len=100)
    model, noisy = load_model(tiny_folder, config), load_model(noisy_folder, config)
    expected = collected(make_driver(model), PROMPT, sampling=sampling)
    driver = drafting(model, noisy)
    assert_equal(collected(driver, PROMPT, sampling=sampling), expected)
    assert total(driver, "num_proposed_tokens") > 5
    assert total(driver, "draft_seconds") > 0
    assert num_free(driver) == (32, 32)
    driver.check_compute_time()


@pytest.mark.parametrize("sampling", [LONG, DRAWN], ids=["greedy", "drawn"])
def test_a_draft_that_is_always_right_saves_most_steps(
    tiny_model: LoadedModel, sampling: SamplingParams
) -> None:
    """What is drawn is drafted with the same random number: so the model agrees with itself."""
    driver = drafting(tiny_model, tiny_model)
    assert len(collected(driver, PROMPT, sampling=sampling).token_ids) == 60
    num_steps = sum(result.stats.num_sequences > 0 for result in driver.results)
    assert num_steps <= 16, "eight tokens in a step, once the draft is trusted"
    assert total(driver, "num_accepted_tokens") == total(driver, "num_proposed_tokens")


def test_a_draft_of_another_family_that_is_never_right_changes_nothing(
    tiny_model: LoadedModel, stranger: LoadedModel
) -> None:
    expected = collected(make_driver(tiny_model), PROMPT, sampling=LONG)
    driver = drafting(tiny_model, stranger)
    assert_equal(collected(driver, PROMPT, sampling=LONG), expected)
    assert total(driver, "num_accepted_tokens") <= total(driver, "num_proposed_tokens") / 4
    assert num_free(driver) == (32, 32)


def test_drawn_tokens_are_distributed_as_without(
    tiny_model: LoadedModel, noisy_model: LoadedModel
) -> None:
    """Seed by seed the same draws: so every frequency over seeds is the same."""
    plain, driver = make_driver(tiny_model), drafting(tiny_model, noisy_model)
    for seed in range(40):
        sampling = replace(DRAWN, seed=seed, max_tokens=12, temperature=1.5, num_logprobs=None)
        for each in (plain, driver):
            each.add(str(seed), PROMPT, sampling=sampling)
    assert {n: c.token_ids for n, c in plain.run().items()} == {
        n: c.token_ids for n, c in driver.run().items()
    }
    assert total(driver, "num_accepted_tokens") > 20


def test_several_sequences_are_drafted_in_the_same_forwards(
    tiny_model: LoadedModel, noisy_model: LoadedModel
) -> None:
    prompts = [PROMPT[i:] for i in range(5)]
    expected = make_driver(tiny_model, num_blocks=160).generate(prompts, sampling=greedy(40))
    driver = drafting(tiny_model, noisy_model, num_blocks=160)
    assert driver.generate(prompts, sampling=greedy(40)) == expected
    assert driver.engine.drafter is not None
    num_drafted = total(driver, "num_proposed_tokens")
    assert driver.engine.drafter.num_forwards < num_drafted / 2


def test_a_sequence_that_leaves_takes_its_draft_along(tiny_model: LoadedModel) -> None:
    driver = drafting(tiny_model, tiny_model)
    for name in "abc":
        driver.add(name, PROMPT[: 4 + ord(name) % 3], sampling=LONG)
    while total(driver, "num_accepted_tokens") < 6:
        driver.step()
    assert num_free(driver)[1] < 32
    for name in "abc":
        driver.engine.abort(name)
        driver.engine.check_invariants()
    assert num_free(driver) == (32, 32)


def test_a_sequence_that_loses_its_blocks_loses_its_draft(
    tiny_model: LoadedModel, noisy_model: LoadedModel
) -> None:
    prompts = [PROMPT, OTHER, PROMPT[3:]]
    expected = make_driver(tiny_model, num_blocks=100).generate(prompts, sampling=greedy(40))
    driver = drafting(tiny_model, noisy_model, num_blocks=28, max_model_len=64)
    assert driver.generate(prompts, sampling=greedy(40)) == expected
    assert driver.num_preempted > 0
    assert total(driver, "num_accepted_tokens") > 5
    assert num_free(driver) == (28, 28)


def test_an_imported_prompt_is_caught_up_and_drafted(tiny_model: LoadedModel) -> None:
    tokens = collected(make_driver(tiny_model), PROMPT, sampling=LONG).token_ids
    producer, driver = make_driver(tiny_model), drafting(tiny_model, tiny_model)
    producer.add("a", PROMPT, sampling=LONG, prefill_only=True)
    kv = producer.engine.kv_cache.read_blocks(producer.step().computed[0].block_ids)
    driver.add("a", PROMPT, sampling=LONG, kv_source=KvSource.IMPORT)
    driver.engine.kv_cache.write_blocks(driver.step().reserved[0].block_ids, kv)
    driver.engine.import_finished("a", num_computed_tokens=len(PROMPT), first_token_id=tokens[0])
    assert driver.run()["a"].token_ids == tokens[1:]
    assert total(driver, "num_accepted_tokens") > 30
    assert num_free(driver) == (32, 32)


def test_what_is_drafted_for_a_step_that_lets_an_import_go_first_is_drafted_again(
    tiny_model: LoadedModel,
) -> None:
    """Where a step is computed before it returns, who is to write blocks hears of them first."""
    expected = collected(make_driver(tiny_model), PROMPT, sampling=LONG)
    driver = drafting(tiny_model, tiny_model)
    driver.add("a", PROMPT, sampling=LONG)
    while total(driver, "num_accepted_tokens") < 6:
        driver.step()
    before = driver.engine.drafter.num_forwards if driver.engine.drafter else 0
    driver.add("b", OTHER, sampling=greedy(4), kv_source=KvSource.IMPORT)
    result = driver.step()
    assert driver.engine.drafter is not None
    assert driver.engine.drafter.num_forwards > before
    assert (len(result.reserved), result.stats.num_sequences) == (1, 0)
    driver.engine.import_finished("b", num_computed_tokens=0)
    assert_equal(driver.run()["a"], expected)
    assert num_free(driver) == (32, 32)


def test_what_a_grammar_binds_is_drafted_within_it(
    tiny_model: LoadedModel, noisy_model: LoadedModel
) -> None:
    mask = AutomatonMask({0: dict.fromkeys(range(0, 128), 1), 1: dict.fromkeys(range(256), 0)})
    fields = {"sampling": LONG, "token_mask": mask}
    expected = collected(make_driver(tiny_model), PROMPT, **fields)
    driver = drafting(tiny_model, noisy_model)
    assert_equal(collected(driver, PROMPT, **fields), expected)
    assert total(driver, "num_accepted_tokens") > 5


def test_a_beam_search_beside_it_is_not_drafted(tiny_model: LoadedModel) -> None:
    search = SamplingParams(
        max_tokens=8, ignore_eos=True, beam_search=BeamSearchParams(width=2), temperature=0.0
    )
    alone = make_driver(tiny_model, num_blocks=64)
    alone.add("s", PROMPT, sampling=search)
    driver = drafting(tiny_model, tiny_model, num_blocks=64)
    driver.add("s", PROMPT, sampling=search)
    driver.add("a", OTHER, sampling=LONG)
    found = driver.run()
    assert found["s"].hypotheses == alone.run()["s"].hypotheses
    assert total(driver, "num_accepted_tokens") > 30
    assert num_free(driver) == (64, 64)


def test_tokens_that_the_draft_does_not_have_are_not_drafted(
    tiny_model: LoadedModel, tmp_path: Path
) -> None:
    """Paddings differ: of models of one family some have more ids than tokens."""
    folder = make_tiny_checkpoint(tmp_path / "padded", vocab_size=256)
    smaller = load_model(folder, EngineConfig(dtype="float32", max_model_len=512))
    prompt = [*PROMPT, 263, 262]
    for target, draft in ((tiny_model, smaller), (smaller, tiny_model)):
        tokens = [t % target.vocab_size for t in prompt]
        expected = collected(make_driver(target), tokens, sampling=DRAWN)
        assert_equal(collected(drafting(target, draft), tokens, sampling=DRAWN), expected)


def test_a_sequence_longer_than_the_draft_can_be_is_not_drafted(
    tiny_model: LoadedModel, tiny_folder: Path
) -> None:
    short = load_model(tiny_folder, EngineConfig(dtype="float32", max_model_len=40))
    expected = collected(make_driver(tiny_model), PROMPT, sampling=LONG)
    driver = drafting(tiny_model, short)
    assert_equal(collected(driver, PROMPT, sampling=LONG), expected)
    assert 0 < total(driver, "num_accepted_tokens") < 20


def test_a_draft_whose_logits_are_not_finite_proposes_nothing(
    tiny_model: LoadedModel, noisy_folder: Path
) -> None:
    draft = load_model(noisy_folder, EngineConfig(dtype="float32", max_model_len=512))
    draft.decoder._final_norm.weight.fill_(float("nan"))
    expected = collected(make_driver(tiny_model), PROMPT, sampling=LONG)
    driver = drafting(tiny_model, draft)
    assert_equal(collected(driver, PROMPT, sampling=LONG), expected)
    assert total(driver, "num_proposed_tokens") == 0


@pytest.fixture
def queue(seed: int) -> Iterator[ThreadQueue]:
    queue = ThreadQueue(seed)
    yield queue
    queue.close()


def test_where_steps_overlap_a_sequence_waits_for_its_draft(
    tiny_model: LoadedModel, queue: ThreadQueue
) -> None:
    expected = collected(make_driver(tiny_model), PROMPT, sampling=greedy(90 - 21))
    driver = drafting(tiny_model, tiny_model, queue=queue)
    assert_equal(collected(driver, PROMPT, sampling=greedy(90 - 21)), expected)
    assert total(driver, "num_accepted_tokens") > 10
    assert num_free(driver) == (32, 32)


@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_a_drafts_kv_lies_as_its_decoder_likes_it(tmp_path: Path, kv: str) -> None:
    """Packed where it is native, in one byte where the engine's own is: drafts are as right."""
    folder = make_tiny_checkpoint(tmp_path, "llama", hidden_size=64, head_dim=32)
    model = load_model(folder, EngineConfig(kv_cache_dtype=kv))
    plain = make_driver(model, block_size=16, max_model_len=100)
    expected = collected(plain, PROMPT, sampling=LONG)
    driver = drafting(model, model, block_size=16)

    assert_equal(collected(driver, PROMPT, sampling=LONG), expected)
    assert driver.engine.drafter is not None
    layout = driver.engine.drafter.kv_layout
    assert layout == driver.engine.kv_cache.layout
    assert layout.is_packed == (model.decoder.is_native and kv == "auto")
    assert total(driver, "num_accepted_tokens") > 40
