"""Prints a line of JSON: what PyTorch's best products and its copy reach on a device, in FLOPs and bytes per second.

    torch_limits.py cuda|cpu [tiny]
"""
import json
import sys
import time

import torch

device, is_tiny = sys.argv[1], "tiny" in sys.argv[2:]
torch.manual_seed(0)
on_device = device != "cpu"


def best_seconds(call, rounds: int, repeats: int) -> float:
    """Of one call; the best of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        if on_device:
            torch.accelerator.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        if on_device:
            torch.accelerator.synchronize()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def product_flops(dtype) -> float:
    best = 0.0
    sizes = [(256, 256, 256)] if is_tiny else [(8192, 8192, 8192), (16384, 4096, 4096), (4096, 14336, 8192)]
    if not on_device and not is_tiny:
        sizes = [(2048, 384, 1024), (512, 768, 2048), (1024, 1024, 1024), (2048, 2048, 2048)]
    for m, k, n in sizes:
        # Random values: a product of zeros is faster on some devices.
        x, w = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (k, n)))
        best = max(best, 2.0 * m * k * n / best_seconds(lambda: x @ w, rounds=8, repeats=4))
    return best


def copy_bytes() -> float:
    size = 2**20 if is_tiny else 2**31 if on_device else 2**27
    x = torch.ones(size, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return 2.0 * size / best_seconds(lambda: y.copy_(x), rounds=8, repeats=4)


card = torch.cuda.get_device_name(0) if device == "cuda" else ""
print(json.dumps(dict(product_flops={"fp32": product_flops(torch.float32), "bf16": product_flops(torch.bfloat16)},
                      copy_bytes_per_s=copy_bytes(), torch=torch.__version__, card=card)))
