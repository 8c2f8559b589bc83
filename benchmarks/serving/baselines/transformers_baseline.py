"""`transformers` generating a batch, as a process of its own: the baseline of the standard set.

Reads a JSON line per batch, `{"prompts": [[ids], ...], "num_output_tokens": n}`, and answers with
`{"seconds": s, "num_output_tokens": n}`. A batch's prompts are equally long; EOS ends no row.

    python benchmarks/serving/baselines/transformers_baseline.py --model DIR --threads 1
"""

import argparse
import json
import sys
import time
from typing import Any

import torch
import transformers


def generate(model: Any, prompts: list[list[int]], num_output_tokens: int) -> dict[str, Any]:
    """Generate greedily and return the time of it."""
    input_ids = torch.tensor(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_output_tokens,
            min_new_tokens=num_output_tokens,
            do_sample=False,
        )
    seconds = time.perf_counter() - start
    num_generated = output.numel() - input_ids.numel()
    return {"seconds": seconds, "num_output_tokens": num_generated}


def main() -> None:
    """Answer batches until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=getattr(torch, arguments.dtype)
    )
    model.eval()
    print(json.dumps({"ready": True, "version": transformers.__version__}), flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        print(json.dumps(generate(model, batch["prompts"], batch["num_output_tokens"])), flush=True)


if __name__ == "__main__":
    main()
