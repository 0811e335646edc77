"""Tiny models that read, as folders with a tokenizer that an agent can serve; and what transformers says of them."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tiny_models import build_tiny, remembered

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = (*SPECIAL, *string.ascii_lowercase, *(f"##{each}" for each in string.ascii_lowercase), *string.digits)


def text_model(name: str, path: Path, **changes: Any) -> Path:
    """The tiny model ``name`` with a WordPiece tokenizer of letters, each of which is a token."""
    build_tiny(name, path, **changes)
    return remembered(f"tokenizer {name}", path, lambda folder: tokenizer_of_letters(folder, name))


def tokenizer_of_letters(path: Path, name: str = "bert", **settings: Any) -> None:
    """Save one in the folder: every letter and digit is a token, and every word of more than 100 of them."""
    kind = transformers.DistilBertTokenizer if name.startswith("distil") else transformers.BertTokenizer
    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    kind(vocab=numbers, model_max_length=64, **settings).save_pretrained(path)


def translator(name: str, path: Path, **changes: Any) -> Path:
    """The tiny model ``name``, which reads one text and writes another, with a tokenizer of T5's kind: pieces of one
    character, those that begin a word apart, and what unknown characters become together."""
    build_tiny(name, path, **changes)
    return remembered("tokenizer of pieces", path, _tokenizer_of_pieces)


def _tokenizer_of_pieces(path: Path) -> None:
    single = [*string.ascii_lowercase, *string.digits]
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(f"▁{each}" for each in single), *single]
    pieces += [*string.ascii_uppercase][: 97 - len(pieces)]
    model = tokenizers.models.Unigram([(piece, -1.0 - len(piece)) for piece in pieces], unk_id=2)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(path)


def with_pooling(
    path: Path, *, normalize: bool = False, settings: dict[str, Any] | None = None, **pooling: Any
) -> Path:
    """The same folder, saying as sentence-transformers does how its texts become vectors."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": at, "name": str(at), "path": paths[at], "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    if settings is not None:
        (path / "sentence_bert_config.json").write_text(json.dumps(settings))
    return path


def change_config(path: Path, **members: Any) -> Path:
    """The same folder with other members in its config."""
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **members}))
    return path


@torch.inference_mode()
def oracle_rows(path: Path, ids: list[int], types: list[int] | None = None) -> torch.Tensor:
    """The rows [tokens, hidden] that transformers' bare model has of one text."""
    model: Any = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    more = {} if types is None else {"token_type_ids": torch.tensor([types])}
    mask = torch.ones(1, len(ids), dtype=torch.int64)
    rows: torch.Tensor = model(input_ids=torch.tensor([ids]), attention_mask=mask, **more).last_hidden_state[0]
    return rows


@torch.inference_mode()
def translated(folder: Path, prompt: str, tokens: int) -> str:
    """What transformers writes greedily of a text, attention mask given."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    kind: Any = transformers.AutoModelForSeq2SeqLM
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    ids = model.generate(**_inputs(tokenizer, prompt), max_new_tokens=tokens, do_sample=False)[0, 1:]
    assert len(ids) == tokens
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def _inputs(tokenizer: Any, prompt: str) -> dict[str, torch.Tensor]:
    found = tokenizer(prompt, return_tensors="pt")
    return {"input_ids": found.input_ids, "attention_mask": found.attention_mask}
