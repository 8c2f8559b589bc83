"""A text classifier small enough to be made in a test: one word decides."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace


def write_classifier(folder: Path, *, bad_word: str, multi_label: bool = False) -> Path:
    """Write model.onnx, tokenizer.json and config.json; return the folder.

    Its logits are the sum of each token's: (5, -5) for what is fine, (-100, 100) for the word.
    """
    folder.mkdir(parents=True)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, bad_word: 2}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"id2label": {"0": "fine", "1": "toxic"}}
    if multi_label:
        config["problem_type"] = "multi_label_classification"  # type: ignore[assignment]
    (folder / "config.json").write_text(json.dumps(config))
    table = np.array([[0, 0], [5, -5], [-100, 100]], dtype=np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["each"]),
        helper.make_node("ReduceSum", ["each", "axis"], ["logits"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / "model.onnx"))
    return folder
