"""The tokenizer of a folder is that of its checkpoint, to AutoTokenizer and to onnxruntime-genai."""

from __future__ import annotations

import json

import pytest

import language_models
from tests.language_models import checkpoints
from tests.language_models.architectures import ARCHITECTURES
from tests.language_models.test_embedding import bert
from tests.language_models.test_encoder_decoder import T5, made

import transformers  # isort: skip
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers  # isort: skip

SPECIAL = {
    "Bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "T5": ["<pad>", "</s>", "<unk>"],
    "GPT2": ["<|endoftext|>"],
}


def words(folder, family):
    """A tokenizer.json as such checkpoints have it, which says nothing of special tokens' roles."""
    kinds = {
        "Bert": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer),
        "T5": (models.Unigram(), trainers.UnigramTrainer),
        "GPT2": (models.BPE(), trainers.BpeTrainer),
    }
    kind, trainer = kinds[family]
    words = Tokenizer(kind)
    words.pre_tokenizer = pre_tokenizers.Metaspace() if family == "T5" else pre_tokenizers.Whitespace()
    more = {"unk_token": "<unk>"} if family == "T5" else {}
    words.train_from_iterator(
        checkpoints.TEXTS * 3, trainer(vocab_size=60, special_tokens=SPECIAL[family], show_progress=False, **more)
    )
    if family == "T5":
        words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    words.save(str(folder / "tokenizer.json"))


def saved(folder, family, config):
    models_ = {
        "Bert": bert,
        "T5": lambda: made("T5", {**T5, "vocab_size": 200}),
        "GPT2": lambda: checkpoints.model("GPT2LMHeadModel", **ARCHITECTURES["GPT2LMHeadModel"]),
    }
    models_[family]().save_pretrained(folder)
    words(folder, family)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, {}, {"model_max_length": 9}], ids=["none", "empty", "length"])
@pytest.mark.parametrize("family", ["Bert", "T5", "GPT2"])
def test_a_tokenizer_whose_class_the_configuration_decides(tmp_path, family, config):
    saved(tmp_path / "in", family, config)
    out = language_models.export(tmp_path / "in", path=tmp_path / "out")
    own, written = (transformers.AutoTokenizer.from_pretrained(tmp_path / n) for n in ("in", "out"))
    assert type(written) is type(own) and written.special_tokens_map == own.special_tokens_map
    assert written("the cat sat").input_ids == own("the cat sat").input_ids
    exec(out.usage, {})


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, "512", 1e30, -1, 0, True, float("nan")], ids=str)
def test_a_longest_text_that_is_no_number(tmp_path, length):
    checkpoints.checkpoint(tmp_path / "in", "Llama", **checkpoints.LLAMA)
    file = tmp_path / "in" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": length}))
    language_models.export(tmp_path / "in", path=tmp_path / "out")
    assert json.loads((tmp_path / "out" / file.name).read_text())["model_max_length"] == 128


def test_names_in_other_scripts(tmp_path):
    """onnxruntime-genai reads no escapes in its own file."""
    genai = pytest.importorskip("onnxruntime_genai")
    checkpoints.checkpoint(tmp_path / "modèle 模型", "Llama", **{**checkpoints.LLAMA, "hidden_size": 128})
    language_models.export(tmp_path / "modèle 模型", path=tmp_path / "öut", external_data="reference")
    assert genai.Model(str(tmp_path / "öut"))
