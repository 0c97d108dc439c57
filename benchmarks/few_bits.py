"""What weights in few bits cost a trained model: perplexity after rounding to the nearest and after GPTQ.

A small Llama is trained for some minutes on the help texts that ship with Python (`pydoc_data.topics`), a tenth of
which it does not see. Each folder is read by teacher forcing in its own runtime. --write puts the table in the page.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import language_models
from benchmarks import pages
from language_models.loss import logits_of, loss
from tests.zoo import torchvision_shim  # noqa: F401  (transformers imports only after it)

import transformers  # isort: skip

PAGE = Path(__file__).with_name("few_bits.md")
VOCABULARY, LENGTH, BATCH = 1024, 128, 8
STEPS, RATE = 400, 2e-3
TEXTS = 8  # of LENGTH tokens each, of the part that was not trained on: what the loss is measured on
CALIBRATION = 64  # texts of the part that was
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
KINDS = [("onnx", "int4"), ("onnx", "int8"), ("eager", "int4"), ("eager", "int8"), ("nnef", "int4")]


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """The texts as rows of LENGTH tokens: those to train on, and every tenth."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    topics = [*pydoc_data.topics.topics.values()]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<pad>", "<s>", "</s>"]
    made.train_from_iterator(topics, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special))
    found = torch.tensor([t for text in topics for t in made.encode(text).ids])
    rows = found[: len(found) // LENGTH * LENGTH].view(-1, LENGTH)
    tenth = torch.arange(len(rows)) % 10 == 9
    return rows[~tenth], rows[tenth]


def trained(rows: torch.Tensor) -> Any:
    """A Llama that has seen the texts some times."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, STEPS)
    for _ in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,))]
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    return model.eval()


def measured(model: Any, texts: torch.Tensor, **options: Any) -> tuple[float, float, float]:
    """Perplexity of the float model and of an exported one, and how many of the ten likeliest tokens are equal."""
    with tempfile.TemporaryDirectory() as folder:
        made = language_models.export(model, path=Path(folder) / "made", **options)
        program = made.load()
        found = [loss(program, logits_of(model, text[None]), text[None]) for text in texts]
    logs = [(math.log(f.floats), math.log(f.perplexity)) for f in found]
    floats, few = (math.exp(sum(each) / len(each)) for each in zip(*logs, strict=True))
    return floats, few, sum(f.overlap for f in found) / len(found)


def main() -> None:
    """Measure and print a table, or write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    seen, unseen = tokens()
    start = time.perf_counter()
    model = trained(seen)
    seconds = time.perf_counter() - start
    lines = [
        "| target | weights | rounded | perplexity | more than in float | top 10 equal |",
        "|---|---|---|---|---|---|",
    ]
    for target, weights in KINDS:
        for how, calibration in (("to the nearest", None), ("GPTQ", seen[:CALIBRATION])):
            floats, few, overlap = measured(
                model, unseen[:TEXTS], target=target, weights=weights, calibration=calibration
            )
            lines.append(f"| {target} | {weights} | {how} | {few:.3f} | {few / floats - 1:+.2%} | {overlap:.1%} |")
            print(lines[-1], flush=True)
    count = sum(p.numel() for p in model.parameters())
    text = (
        f"{count / 1e6:.1f} M parameters, {STEPS} steps of {BATCH} x {LENGTH} tokens in {seconds:.0f} s; "
        f"a vocabulary of {VOCABULARY} tokens;\n"
        f"perplexity in float {floats:.3f} on {TEXTS} x {LENGTH} tokens that it did not see; "
        f"calibrated on {CALIBRATION} x {LENGTH} tokens.\n\n" + "\n".join(lines)
    )
    print(text)
    if options.write:
        pages.put(PAGE, text)


if __name__ == "__main__":
    main()
