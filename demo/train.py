"""Train the demo model on a CPU and write it to `demo/model/` in Hugging Face layout.

    python demo/train.py                     # about half an hour on two cores
    python demo/train.py --evaluate-only     # measure and sample the model already there

Owns the model's shape, the optimisation and the evaluation. The text comes from `corpus`, the
tokens from `tokenizer`. The folder can be used from the first evaluation on: config and tokenizer
are written before training, and better weights replace the old file atomically.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from corpus import (
    Message,
    Speech,
    held_out_dialogues,
    read_speeches,
    sample_documents,
    split_held_out,
)
from safetensors.torch import save_file
from tokenizer import BOS_ID, END_ID, PAD_ID, save_tokenizer, train_tokenizer
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerBase as ChatTokenizer

MODEL_DIR = Path(__file__).with_name("model")
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "bos_token_id": BOS_ID,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
TOKEN_IDS = {key: MODEL_CONFIG[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}

HELD_OUT_FRACTION = 0.07
STEP_TOKENS = 4096
# Mostly short windows, which are cheaper; the long ones teach the distances that a prompt of
# more than a thousand tokens needs. Every length divides STEP_TOKENS.
WINDOW_TOKENS, WINDOW_WEIGHTS = (512, 1024, 2048), (0.6, 0.2, 0.2)
IGNORED_LABEL = -100

SAMPLE_PROMPTS = (
    "Good morrow, my lord. What news from the king?",
    "Wilt thou marry me?",
    "Who are you, and where do you come from?",
)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def prepare_folder(folder: Path, speeches: list[Speech]) -> ChatTokenizer:
    """Write everything but the weights to `folder` and return its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", MODEL_CONFIG)
    write_json(folder / "generation_config.json", TOKEN_IDS)
    # The tokenizer sees training text only, or the held-out loss would be flattered.
    texts = [f"{speech.speaker}:\n{speech.text}" for speech in speeches]
    tokenizer = train_tokenizer(texts, MODEL_CONFIG["vocab_size"])
    save_tokenizer(tokenizer, folder, MODEL_CONFIG["max_position_embeddings"])
    return AutoTokenizer.from_pretrained(folder)


def save_weights(model: nn.Module, folder: Path) -> None:
    """Replace the folder's weights by the model's, in bfloat16. A reader sees old or new."""
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors makes it private; services may run as another user
    os.replace(partial, folder / "model.safetensors")


def build_model(dropout: float) -> LlamaForCausalLM:
    """Return the model in fp32, with dropout on the embedding and on every residual branch.

    Llama itself has none; with a megabyte of text it would memorise the plays.
    """
    model = LlamaForCausalLM(LlamaConfig(**MODEL_CONFIG)).float()
    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(lambda m, _, out: F.dropout(out, dropout, m.training))
    return model


def build_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves the norms alone. The caller sets the learning rate."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, num_steps: int, peak: float, warmup_steps: int = 60) -> float:
    """Linear warm-up to `peak`, then a cosine down to 2 % of it at `num_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def encode(tokenizer: ChatTokenizer, document: list[Message] | str) -> list[int]:
    """Return a document's tokens: a chat as its template renders it, or `<|bos|>text<|end|>`."""
    if isinstance(document, str):
        return [*tokenizer.encode(document, verbose=False), END_ID]
    text = tokenizer.apply_chat_template(document, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)


def training_batches(
    tokenizer: ChatTokenizer, speeches: list[Speech], rng: random.Random
) -> Iterator[tuple[int, Tensor]]:
    """Yield (epoch, token ids `[B, W + 1]`) for ever, B * W = STEP_TOKENS.

    An epoch's documents are joined end to end and cut into windows of one length per batch.
    """
    stream: list[int] = []
    epoch = 0
    while True:
        while len(stream) <= STEP_TOKENS:
            epoch += 1
            for document in sample_documents(speeches, rng):
                stream += encode(tokenizer, document)
        (window,) = rng.choices(WINDOW_TOKENS, WINDOW_WEIGHTS)
        # A window's last label is the next window's first input, hence the overlap of one.
        yield epoch, torch.tensor(stream[: STEP_TOKENS + 1]).unfold(0, window + 1, window)
        del stream[:STEP_TOKENS]


def sum_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Return the summed next-token loss, in nats, of `tokens` `[B, W + 1]`."""
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        # Padding is on the right, where causal attention never looks; it needs no mask.
        logits = model(input_ids=inputs.clamp(min=0), use_cache=False).logits
    return F.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def held_out_loss(
    tokenizer: ChatTokenizer, speeches: list[Speech]
) -> Callable[[LlamaForCausalLM], dict[str, float]]:
    """Return a function measuring a model's loss on the held-out dialogues, each on its own.

    Every token after `<|bos|>` counts, role markers included. Bits per byte divides the same sum
    by the bytes of the speeches alone, so that it does not depend on the tokenizer.
    """
    dialogues = held_out_dialogues(speeches)
    num_bytes = sum(len(m["content"].encode()) for dialogue in dialogues for m in dialogue)
    documents = sorted((encode(tokenizer, dialogue) for dialogue in dialogues), key=len)
    num_tokens = sum(len(document) - 1 for document in documents)
    batches = []
    for start in range(0, len(documents), 8):
        rows = [torch.tensor(document) for document in documents[start : start + 8]]
        batches.append(nn.utils.rnn.pad_sequence(rows, True, IGNORED_LABEL))

    @torch.no_grad()
    def measure(model: LlamaForCausalLM) -> dict[str, float]:
        model.eval()
        total_nats = sum(sum_loss(model, batch).item() for batch in batches)
        return {
            "nats_per_token": total_nats / num_tokens,
            "bits_per_byte": total_nats / math.log(2) / num_bytes,
            "num_tokens": num_tokens,
            "num_bytes": num_bytes,
        }

    return measure


def train(args: argparse.Namespace, speeches: list[Speech], held_out: list[Speech]) -> None:
    """Train, keeping in `args.out` the weights of the best evaluation.

    Ends after `args.steps` steps, or once `args.patience` evaluations in a row bring no new best.
    """
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    tokenizer = prepare_folder(args.out, speeches)
    measure = held_out_loss(tokenizer, held_out)
    batches = training_batches(tokenizer, speeches, rng)
    model = build_model(args.dropout)
    optimizer = build_optimizer(model, args.weight_decay)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {vars(args)}", flush=True)

    best, num_worse, since_report, started = math.inf, 0, [], time.monotonic()
    for step in range(args.steps):
        model.train()
        epoch, tokens = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.learning_rate)
        loss = sum_loss(model, tokens) / STEP_TOKENS
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        since_report.append(loss.item())
        if (step + 1) % args.evaluate_every and step + 1 != args.steps:
            continue

        result = measure(model)
        is_best = result["nats_per_token"] < best
        num_worse += 1
        if is_best:
            best, num_worse = result["nats_per_token"], 0
            save_weights(model, args.out)
        print(
            f"step {step + 1} epoch {epoch} train {sum(since_report) / len(since_report):.3f} "
            f"held-out {result['nats_per_token']:.4f} nats/token "
            f"{result['bits_per_byte']:.4f} bits/byte "
            f"{(time.monotonic() - started) / 60:.1f} min{' saved' if is_best else ''}",
            flush=True,
        )
        since_report.clear()
        if num_worse == args.patience:
            break


def report(folder: Path, held_out: list[Speech]) -> None:
    """Print what the weights in `folder`, as shipped in bfloat16, score and say."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    print("shipped:", held_out_loss(tokenizer, held_out)(model))
    torch.manual_seed(0)
    for prompt in SAMPLE_PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        for options in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8}):
            output = model.generate(**inputs, max_new_tokens=120, **options)
            answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
            print(f"\n{options}\nuser: {prompt}\nassistant: {answer}")


def main() -> None:
    """Parse the command line, then train and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--seed", type=int, default=1623)  # the year of the First Folio
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--patience", type=int, default=3)  # evaluations without a new best
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--evaluate-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    speeches, held_out = split_held_out(read_speeches(), HELD_OUT_FRACTION)
    if not args.evaluate_only:
        train(args, speeches, held_out)
    report(args.out, held_out)


if __name__ == "__main__":
    main()
