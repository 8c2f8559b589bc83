"""Writes a random Llama's folder as GGUF with llama.cpp's own converter, for `compare.py`.

Runs in an environment with torch, transformers, gguf and numpy. The converter refuses tokenizers
whose splitting it does not know by name; prompts are sent as token ids here, so GPT-2's will do.

    python -P to_gguf.py --llama-cpp SOURCE --model DIR --output FILE.gguf
"""

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any


def name_splitting(module: Any) -> None:
    """Have every model class of the converter call the tokenizer's splitting GPT-2's."""
    for value in vars(module).values():
        if isinstance(value, type) and "get_vocab_base_pre" in vars(value):
            value.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp / "gguf-py"), str(arguments.llama_cpp)]
    import conversion.base

    name_splitting(conversion.base)
    converter = arguments.llama_cpp / "convert_hf_to_gguf.py"
    sys.argv = [str(converter), str(arguments.model), "--outfile", str(arguments.output)]
    sys.argv += ["--outtype", "bf16", "--model-name", arguments.model.name]
    runpy.run_path(str(converter), run_name="__main__")


if __name__ == "__main__":
    main()
