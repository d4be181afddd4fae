"""Writes tests/golden/llama: a tiny model of transformers with every feature of the family, and its logits, so that the
default tests can compare with transformers without Python. Run it by hand: make_golden.py FOLDER."""

import pathlib
import sys

import torch
from safetensors.torch import save_file

import models

folder = pathlib.Path(sys.argv[1])
model = models.make(seed=1, vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
                    num_key_value_heads=1, head_dim=10, rope=models.LLAMA3, attention_bias=True, mlp_bias=True,
                    tie_word_embeddings=True, initializer_range=0.2)
models.save(model, folder, old_spelling=True)
ids = torch.randint(0, 61, (2, 41), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    logits = model(ids).logits
save_file({"input_ids": ids.int(), "logits": logits.contiguous()}, folder / "expected.st")
