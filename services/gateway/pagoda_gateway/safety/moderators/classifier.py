"""A text classifier in this process: an ONNX model beside its tokenizer, on the CPU.

The folder is what transformers' exporter writes: `model.onnx`, `tokenizer.json`, `config.json`.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from pagoda_gateway.safety.moderators.base import Judgement, ModeratorError
from pagoda_gateway.safety.policies.file import ClassifierSettings, SafetyFileError

MULTI_LABEL = "multi_label_classification"
BATCH = 16
_UNLABELLED = {"input_ids", "attention_mask", "token_type_ids"}


class Classifier:
    """One model, and one thread that runs it: two at once would share the cores."""

    def __init__(self, settings: ClassifierSettings) -> None:
        """Load it.

        Raises:
            SafetyFileError: a file is missing or of another kind, or onnxruntime is.
        """
        try:
            import onnxruntime  # optional, and large
        except ImportError:
            raise SafetyFileError(
                "a moderator of kind 'classifier' needs onnxruntime: pip install "
                "'pagoda-gateway[classifier]'"
            ) from None
        folder = settings.folder
        try:
            config = orjson.loads((folder / "config.json").read_bytes())
            labels = {int(number): str(name) for number, name in config["id2label"].items()}
            self._labels = [labels[number] for number in range(len(labels))]
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session: Any = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of three libraries, one of them with classes of its own
            raise SafetyFileError(
                f"the classifier in {folder} cannot be loaded: {error}"
            ) from error
        self._inputs = {value.name for value in self._session.get_inputs()}
        if self._inputs - _UNLABELLED:
            raise SafetyFileError(
                f"the classifier in {folder} wants the inputs {', '.join(sorted(self._inputs))}; "
                f"only {', '.join(sorted(_UNLABELLED))} are known"
            )
        self._is_multi_label = config.get("problem_type") == MULTI_LABEL
        self._tokenizer.enable_truncation(settings.max_tokens)
        self._tokenizer.enable_padding()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=Path(folder).name)

    async def judge(self, texts: Sequence[str]) -> list[Judgement]:
        """See `Moderator.judge`."""
        loop = asyncio.get_running_loop()
        judgements: list[Judgement] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            try:
                judgements += await loop.run_in_executor(self._thread, self._judge, batch)
            except Exception as error:
                raise ModeratorError(f"its model failed: {type(error).__name__}") from error
        return judgements

    async def close(self) -> None:
        """End its thread after what it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _judge(self, texts: list[str]) -> list[Judgement]:
        import numpy as np

        encodings = self._tokenizer.encode_batch(texts)
        values = {
            "input_ids": [encoding.ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
            "token_type_ids": [encoding.type_ids for encoding in encodings],
        }
        inputs = {name: np.array(values[name], dtype=np.int64) for name in self._inputs}
        logits = np.asarray(self._session.run(None, inputs)[0], dtype=np.float64)
        if self._is_multi_label:
            scores = 1 / (1 + np.exp(-logits))
        else:
            scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
        return [Judgement(dict(zip(self._labels, row, strict=True))) for row in scores.tolist()]
