"""Every architecture of `architectures.py` in every runtime, token for token beside transformers.

    python -m tests.language_models.sweep              # prints the table
    python -m tests.language_models.sweep Llama Phi3   # some of them
    python -m tests.language_models.sweep --write      # into docs/language-models-table.md

Greedy, 32 tokens, a text alone and a batch of three of different lengths. Each row runs in a process of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "language-models-table.md"
STEPS = 32
COLUMNS = ("onnxruntime-genai", "onnxruntime", "tract", "torch")
HEAD = f"""# Language models: architectures

Written by `python -m tests.language_models.sweep --write`. Random checkpoints of two layers; greedy, {STEPS} tokens
equal to those of transformers' `generate`. "1, 3": a text alone and a batch of three of different lengths; "1": a text
alone, the batch differs. tract has texts one after the other. onnxruntime-genai holds keys and values only; what
remembers other states runs in onnxruntime by our own loop, a token at a time.

"""


def main(arguments: list[str]) -> None:
    from tests.language_models.architectures import ARCHITECTURES

    wanted = [a for a in arguments if not a.startswith("-")] or list(ARCHITECTURES)
    rows = {name: _in_process(name) for name in wanted}
    text = _page(rows)
    print(text)
    if "--write" in arguments:
        PAGE.write_text(text)


def _in_process(name: str) -> dict[str, str]:
    said = [sys.executable, "-m", "tests.language_models.sweep", "--row", name]
    try:
        done = subprocess.run(said, capture_output=True, text=True, timeout=600)
        row: dict[str, str] = json.loads(done.stdout.rpartition("\n{")[2].join(["{", ""]))
    except (subprocess.TimeoutExpired, ValueError):
        row = dict.fromkeys(COLUMNS, "crash")
    print(name, row, file=sys.stderr, flush=True)
    return row


def row(name: str) -> dict[str, str]:
    """What each runtime gives for one architecture."""
    import language_models
    from tests.language_models import checkpoints
    from tests.language_models.architectures import ARCHITECTURES

    texts = [checkpoints.prompts(batch) for batch in (1, 3)]
    for seed in range(10):
        model = checkpoints.model(name, seed, **ARCHITECTURES[name])
        wanted = [_reference(model, *t) for t in texts]
        if all(len({*new}) > 4 and 2 not in new for rows in wanted for new in rows):
            break  # texts that go on, and are more than a token again and again
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for target, columns in {"onnx": COLUMNS[:2], "nnef": COLUMNS[2:3], "eager": COLUMNS[3:]}.items():
            try:
                made = language_models.export(model, path=Path(folder, target), target=target)
            except Exception as error:
                found |= dict.fromkeys(columns, f"refused: {_short(error)}")
                continue
            for column in columns:
                run = _genai if column == COLUMNS[0] else _ours
                found[column] = _compared(run, made, texts, wanted)
    return found


def _reference(model: Any, tokens: Any, mask: Any) -> list[list[int]]:
    from language_models.comparing import reference

    new: list[list[int]] = reference(model, tokens, STEPS, mask)[:, tokens.shape[1] :].tolist()
    return new


def _compared(run: Any, made: Any, texts: Any, wanted: Any) -> str:
    if run is _genai and not (made.path / "genai_config.json").exists():
        return "holds no such state"
    right = []
    for (tokens, mask), new in zip(texts, wanted, strict=True):
        try:
            if run(made, tokens, mask) == new:
                right.append(str(len(tokens)))
        except Exception as error:
            return f"fails: {_short(error)}"
    return ", ".join(right) or "differs"


def _ours(made: Any, tokens: Any, mask: Any) -> list[list[int]]:
    new: list[list[int]] = made.load().generate(tokens, mask, STEPS)[:, tokens.shape[1] :].tolist()
    return new


def _genai(made: Any, tokens: Any, mask: Any) -> list[list[int]]:
    """Rows are padded on the right, as its own tokenizer pads them; behind their end it goes on."""
    import onnxruntime_genai as genai
    import torch

    rows = torch.stack([torch.cat([t[m > 0], t[m < 1]]) for t, m in zip(tokens, mask, strict=True)])
    model = genai.Model(str(made.path))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=rows.shape[1] + STEPS, batch_size=len(rows), do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(rows.numpy().astype("int32"))
    while not generator.is_done():
        generator.generate_next_token()
    new = [list(generator.get_sequence(i))[rows.shape[1] :] for i in range(len(rows))]
    if len(new) == 1 and len(new[0]) < STEPS:  # it leaves out the token that ends a text
        new[0].append(made.manifest.eos[0])
    return new


def _short(error: Exception) -> str:
    text = re.sub(r"/tmp/\S+/", "", " ".join(str(error).split()))
    return text[:150].replace("|", "/")


def _page(rows: dict[str, dict[str, str]]) -> str:
    lines = [f"| architecture | {' | '.join(COLUMNS)} |", "|" + "---|" * (len(COLUMNS) + 1)]
    lines += [f"| {name} | {' | '.join(row[c] for c in COLUMNS)} |" for name, row in rows.items()]
    whole = {c: sum(row[c] == "1, 3" for row in rows.values()) for c in COLUMNS}
    total = ", ".join(f"{c} {n}" for c, n in whole.items())
    return HEAD + "\n".join(lines) + f"\n\nOf {len(rows)} architectures, both right: {total}.\n"


if __name__ == "__main__":
    if "--row" in sys.argv:
        print("\n" + json.dumps(row(sys.argv[-1])))
    else:
        main(sys.argv[1:])
