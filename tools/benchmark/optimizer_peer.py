"""The peers of tools/bench --optimizer: steps of one parameter in host memory.

    optimizer_peer.py bnb8bit|torch-fused|torch-muon ROWS COLUMNS STEPS THREADS

bnb8bit: bitsandbytes' AdamW8bit; torch-fused: PyTorch's AdamW(fused=True); torch-muon: PyTorch's Muon, which computes in
bf16. Prints a line of JSON: seconds of each step.
"""
import json
import sys
import time

import torch

name, rows, columns, steps, threads = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(3)
parameter = torch.nn.Parameter(torch.randn(rows, columns))
parameter.grad = torch.randn(rows, columns)
if name == "bnb8bit":
    import bitsandbytes

    optimizer = bitsandbytes.optim.AdamW8bit([parameter], lr=1e-3, weight_decay=0.1)
elif name == "torch-fused":
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.1, fused=True)
else:
    optimizer = torch.optim.Muon([parameter], lr=1e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
seconds = []
for _ in range(steps):
    begin = time.perf_counter()
    optimizer.step()
    seconds.append(time.perf_counter() - begin)
print(json.dumps({"elements": rows * columns, "seconds": seconds}))
