"""The shipped demo model: complete, small, loadable by transformers, and able to end an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

MODEL_DIR = Path(__file__).parents[3] / "demo" / "model"
MAX_FOLDER_BYTES = 12_000_000

CONVERSATION = [
    {"role": "system", "content": "You are Romeo."},
    {"role": "user", "content": "Good morrow."},
    {"role": "assistant", "content": "Is the day so young?"},
    {"role": "user", "content": "But new struck nine."},
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def model():
    # fp32 so that the answers do not depend on which bf16 kernels a CPU has.
    return LlamaForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()


def greedy_answer(model, tokenizer, prompt: str, max_new_tokens: int) -> list[int]:
    """Return the output tokens of one user turn, the end token included if it was reached."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def test_folder_is_complete_and_small():
    sizes = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}

    assert set(sizes) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(sizes.values()) < MAX_FOLDER_BYTES


def test_config_states_the_published_shape(model):
    config = model.config

    assert config.num_key_value_heads < config.num_attention_heads
    assert config.head_dim * config.num_attention_heads == config.hidden_size
    assert config.max_position_embeddings == 2048
    assert config.tie_word_embeddings


def test_weights_are_finite_bfloat16():
    weights = load_file(MODEL_DIR / "model.safetensors")

    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_no_weight_is_missing_or_unexpected():
    _, loading = LlamaForCausalLM.from_pretrained(MODEL_DIR, output_loading_info=True)

    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert not loading["mismatched_keys"]


def test_special_token_ids_agree_with_config(model, tokenizer):
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.bos_token_id == model.config.bos_token_id
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.pad_token_id == model.config.pad_token_id


def test_chat_template_keeps_roles_in_order(tokenizer):
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)

    assert text == (
        "<|bos|><|system|>You are Romeo.<|end|><|user|>Good morrow.<|end|>"
        "<|assistant|>Is the day so young?<|end|><|user|>But new struck nine.<|end|>"
    )


def test_chat_template_encodes_each_marker_as_one_token(tokenizer):
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    token_ids = tokenizer.encode(text, add_special_tokens=False)

    markers = [t for t in tokenizer.convert_ids_to_tokens(token_ids) if t.startswith("<|")]

    assert markers == [
        *("<|bos|>", "<|system|>", "<|end|>", "<|user|>", "<|end|>"),
        *("<|assistant|>", "<|end|>", "<|user|>", "<|end|>"),
    ]


def test_generation_prompt_ends_with_the_assistant_marker(tokenizer):
    without = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)

    prompt = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)

    assert prompt == without + "<|assistant|>"


def test_chat_template_extends_its_own_prefix(tokenizer):
    first_turn = tokenizer.apply_chat_template(
        CONVERSATION[:2], tokenize=False, add_generation_prompt=True
    )

    # What prefix caching across turns relies on.
    assert tokenizer.apply_chat_template(CONVERSATION, tokenize=False).startswith(first_turn)


def test_chat_template_rejects_an_unknown_role(tokenizer):
    with pytest.raises(
        Exception, match="role must be system, user, assistant or tool, not narrator"
    ):
        tokenizer.apply_chat_template([{"role": "narrator", "content": "42"}], tokenize=False)


@pytest.mark.parametrize(
    "text",
    [
        "To be, or not to be: that is the question.",
        "  two leading spaces, a tab\t and \r\n line ends \n",
        "naïve café, Ελληνικά, русский, 中文, العربية",
        "🎭 skull 💀 family 👨‍👩‍👧‍👦 flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
        "code: if (x <= 10) { return y[0] && !z; } // 3.14159",
        "\x00\x7f\u200b\ufeff",
        "".join(map(chr, range(256))),
    ],
    ids=["english", "whitespace", "scripts", "emoji", "code", "invisible", "latin1"],
)
def test_tokenizer_round_trips_any_utf8(tokenizer, text):
    token_ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(token_ids) == text


def test_plain_text_gets_one_bos(tokenizer):
    token_ids = tokenizer.encode("ROMEO:\n")

    assert token_ids[0] == tokenizer.bos_token_id
    assert token_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("prompt", ["Who goes there?", "Good morrow, my lord.", "Hello 👋"])
def test_greedy_answer_ends_or_reaches_the_length(model, tokenizer, prompt):
    token_ids = greedy_answer(model, tokenizer, prompt, max_new_tokens=48)

    assert token_ids[-1] == tokenizer.eos_token_id or len(token_ids) == 48
    assert tokenizer.decode(token_ids, skip_special_tokens=True).strip()


@pytest.mark.slow
def test_sampled_answers_mostly_end_by_themselves(model, tokenizer):
    torch.manual_seed(0)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What say you?"}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer([text] * 8, add_special_tokens=False, return_tensors="pt")

    outputs = model.generate(**inputs, max_new_tokens=256, do_sample=True)

    assert sum(tokenizer.eos_token_id in row for row in outputs.tolist()) >= 6


@pytest.mark.slow
def test_a_prompt_near_the_context_limit_keeps_its_loss(model, tokenizer):
    corpus = MODEL_DIR.with_name("tinyshakespeare.txt").read_text(encoding="utf-8")
    token_ids = torch.tensor([tokenizer.encode(corpus[:8000], verbose=False)[:2048]])
    assert token_ids.shape == (1, 2048)

    with torch.no_grad():
        logits = model(token_ids).logits[0, :-1]
    losses = torch.nn.functional.cross_entropy(logits, token_ids[0, 1:], reduction="none")

    assert losses[1024:].mean() < losses[:1024].mean() + 0.3
