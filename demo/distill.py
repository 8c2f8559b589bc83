"""Distil a draft model from the demo model on a CPU and write it to `demo/draft/`.

    python demo/distill.py                   # some minutes on one core

A draft proposes what the demo model says next, for speculative decoding (`PAGODA_DRAFT_MODEL`). It
is a smaller decoder with the same tokenizer, and learns the demo model's distribution over the next
token on the same training text, not the text itself: what counts is that both agree. Owns the
draft's shape and its loss; everything else is as in `train`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from corpus import Speech, held_out_dialogues, read_speeches, split_held_out
from torch import Tensor, nn
from train import (
    HELD_OUT_FRACTION,
    MODEL_CONFIG,
    MODEL_DIR,
    STEP_TOKENS,
    TOKEN_IDS,
    ChatTokenizer,
    build_optimizer,
    encode,
    learning_rate,
    save_weights,
    training_batches,
    write_json,
)
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

DRAFT_DIR = Path(__file__).with_name("draft")
DRAFT_CONFIG = MODEL_CONFIG | {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def logits_of(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Return fp32 logits ``[B, W, V]`` behind each of ``[B, W]`` tokens."""
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=tokens, use_cache=False).logits.float()


def divergence(model: LlamaForCausalLM, teacher: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Return KL(teacher || model) of the next token, in nats, the mean over `tokens`."""
    with torch.no_grad():
        target = F.log_softmax(logits_of(teacher, tokens), dim=-1).flatten(0, 1)
    found = F.log_softmax(logits_of(model, tokens), dim=-1).flatten(0, 1)
    return F.kl_div(found, target, reduction="batchmean", log_target=True)


@torch.no_grad()
def agreement(
    model: LlamaForCausalLM,
    teacher: LlamaForCausalLM,
    tokenizer: ChatTokenizer,
    held_out: list[Speech],
) -> dict[str, float]:
    """Return how far both agree on the held-out dialogues.

    `greedy`: share of tokens behind which both have the same likeliest one. `overlap`: the mass
    that both distributions have in common, 1 less their total variation distance.
    """
    same, overlap, nats, num_tokens = 0.0, 0.0, 0.0, 0
    for dialogue in held_out_dialogues(held_out):
        tokens = torch.tensor([encode(tokenizer, dialogue)])
        theirs, ours = logits_of(teacher, tokens)[0], logits_of(model, tokens)[0]
        same += (theirs.argmax(-1) == ours.argmax(-1)).float().sum().item()
        p, q = theirs.softmax(-1), ours.softmax(-1)
        overlap += torch.minimum(p, q).sum().item()
        nats += (p * (p.log() - q.log())).sum().item()
        num_tokens += tokens.shape[1]
    return {name: total / num_tokens for name, total in
            (("greedy", same), ("overlap", overlap), ("nats_per_token", nats))}  # fmt: skip


def distil(args: argparse.Namespace) -> None:
    """Write the draft's folder, train it against the teacher, and print what it reached."""
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    speeches, held_out = split_held_out(read_speeches(), HELD_OUT_FRACTION)
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "config.json", DRAFT_CONFIG)
    write_json(args.out / "generation_config.json", TOKEN_IDS)
    for name in TOKENIZER_FILES:
        shutil.copy(args.teacher / name, args.out / name)
    tokenizer = AutoTokenizer.from_pretrained(args.out)
    teacher = LlamaForCausalLM.from_pretrained(args.teacher, dtype=torch.bfloat16).eval()
    model = LlamaForCausalLM(LlamaConfig(**DRAFT_CONFIG)).float()
    optimizer = build_optimizer(model, args.weight_decay)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {vars(args)}", flush=True)
    batches, started, since_report = (
        training_batches(tokenizer, speeches, rng),
        time.monotonic(),
        0.0,
    )
    for step in range(args.steps):
        model.train()
        _, tokens = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.learning_rate)
        loss = divergence(model, teacher, tokens[:, :-1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        since_report += loss.item()
        if (step + 1) % args.report_every == 0:
            minutes = (time.monotonic() - started) / 60
            print(
                f"step {step + 1} ({(step + 1) * STEP_TOKENS:,} tokens): KL "
                f"{since_report / args.report_every:.3f} nats/token, {minutes:.1f} min",
                flush=True,
            )
            since_report = 0.0
            save_weights(model, args.out)
    save_weights(model, args.out)
    shipped = LlamaForCausalLM.from_pretrained(args.out, dtype=torch.bfloat16).eval()
    print("held out:", agreement(shipped, teacher, tokenizer, held_out))


def main() -> None:
    """Parse the command line, then distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", type=Path, default=MODEL_DIR)
    parser.add_argument("--out", type=Path, default=DRAFT_DIR)
    parser.add_argument("--seed", type=int, default=1623)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--report-every", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    distil(args)


if __name__ == "__main__":
    main()
