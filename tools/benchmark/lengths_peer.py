"""The peer of tools/bench --lengths: a PyTorch loop over transformers' Llama on documents of unequal lengths.

    lengths_peer.py FOLDER STEPS ROWS THREADS own|padded [compile]

own runs each document at its own length, and accumulates ROWS of them in a step; padded runs them as one batch, padded
to the longest, with an attention mask. Both with fused AdamW in fp32, and the loss of all trained tokens of a step.
"""
import json
import sys

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

folder, steps, rows, threads, kind = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
torch.set_num_threads(threads)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(**json.load(open(f"{folder}/model.json"))))
documents = [json.loads(line)["input_ids"] for line in open(f"{folder}/tokens.jsonl")]
optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                               {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}],
                              lr=1e-4, fused=True)
run = torch.compile(model, dynamic=True) if sys.argv[6:] == ["compile"] else model


def loss_of(ids, mask=None):
    """The sum over the trained tokens."""
    logits = run(input_ids=ids, attention_mask=mask, use_cache=False).logits
    labels = ids[:, 1:] if mask is None else ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum")


for step in range(steps):
    mine = documents[step * rows:(step + 1) * rows]
    trained, total = sum(len(ids) - 1 for ids in mine), 0.0
    if kind == "own":
        for ids in mine:
            loss = loss_of(torch.tensor([ids])) / trained
            loss.backward()
            total += loss.item()
    else:
        longest = max(map(len, mine))
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids in mine])
        mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in mine])
        loss = loss_of(ids, mask) / trained
        loss.backward()
        total = loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"STEP {step + 1} {total:.4f}", flush=True)
