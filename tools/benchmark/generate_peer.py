"""The peer of tools/bench --generate: transformers' generate(), greedy, with a key-value cache.

    generate_peer.py FOLDER BATCH THREADS eager|compile DTYPE SHORT LONG

Answers the first BATCH prompts of FOLDER/prompts.jsonl with SHORT and with LONG new tokens, and prints the tokens and
the seconds between the two as JSON. compile uses a static cache and torch.compile, as transformers does by itself on a
GPU.
"""
import json
import sys
import time

import torch
from transformers import LlamaForCausalLM

folder, batch, threads, kind, dtype, short, long = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:6], *map(
    int, sys.argv[6:8])
torch.set_num_threads(threads)
model = LlamaForCausalLM.from_pretrained(f"{folder}/base", dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
model.eval()
rows = [list(json.loads(line)["prompt"].encode()) for line in open(f"{folder}/prompts.jsonl")][:batch]
longest = max(map(len, rows))
ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])  # padded on the left
mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
more = {}
if kind == "compile":
    more["cache_implementation"] = "static"
    model.forward = torch.compile(model.forward)


@torch.inference_mode()
def seconds(num_tokens: int) -> float:
    start = time.perf_counter()
    made = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, min_new_tokens=num_tokens,
                          max_new_tokens=num_tokens, pad_token_id=0, **more)
    assert made.shape[1] == longest + num_tokens
    return time.perf_counter() - start


seconds(long)  # compiles, and takes memory
once = seconds(short)
print(json.dumps(dict(tokens=batch * (long - short), seconds=seconds(long) - once)))
