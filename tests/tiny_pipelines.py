"""Pipelines of transformers for tests: tiny, random, and made here. Needs PyTorch and transformers."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "this", "is", "text", "a", "b", "c"]
_LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}  # zero-shot classification looks for the first
_BERTS = {
    "text-classification": "BertForSequenceClassification",
    "zero-shot-classification": "BertForSequenceClassification",
    "fill-mask": "BertForMaskedLM",
    "feature-extraction": "BertModel",
    "token-classification": "BertForTokenClassification",
}


def tokenizer(**settings):
    """Splits text at spaces."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32, **special | settings)


def bert_pipeline(task):
    """A pipeline that reads text."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label=_LABELS,
        label2id={label: number for number, label in _LABELS.items()},
    )
    model = getattr(transformers, _BERTS[task])(config).eval()
    return transformers.pipeline(task, model=model, tokenizer=tokenizer(), device="cpu")


def gpt_pipeline(**settings):
    """A pipeline that continues text."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(_WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=2, eos_token_id=3
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    return transformers.pipeline("text-generation", model=model, tokenizer=tokenizer(**settings), device="cpu")
