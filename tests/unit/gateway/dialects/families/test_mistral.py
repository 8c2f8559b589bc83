"""Mistral's marks, which are special tokens: what is detokenised still has them."""

import json
from pathlib import Path

from support.output_parts import parts_of, reading
from support.tiny_tokenizer import write_model_folder

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.text.tokenizer import ModelTokenizer

TEMPLATE = "[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ arguments }}"


def test_an_id_is_no_part_of_a_name(tmp_path: Path) -> None:
    write_model_folder(tmp_path, chat_template=TEMPLATE)
    files = json.loads((tmp_path / "tokenizer.json").read_text())
    first = max(files["model"]["vocab"].values()) + 1
    files["added_tokens"] += [
        {"id": first + i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, mark in enumerate(["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"])
    ]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(files))
    tokenizer, dialect = ModelTokenizer.load(tmp_path), Dialect.of(TEMPLATE)
    kept = frozenset(tokenizer.mark_ids(dialect.marks).values())
    output = tokenizer.encode(
        '[TOOL_CALLS]look[CALL_ID]abcdef123[ARGS]{"a": 1}', add_special_tokens=False
    )
    detokenizer = tokenizer.detokenizer([0], skip_special_tokens=True, kept=kept)
    texts = [*map(detokenizer.push, output), detokenizer.flush()]
    parts = parts_of(dialect.parser([Tool("look")]), texts)
    assert len(kept) == 3
    assert reading(parts) == ("", "", [("look", '{"a": 1}')])
