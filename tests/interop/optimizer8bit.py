"""Steps of adamw8bit, lion and muon beside bitsandbytes, PyTorch and the formulas of both.

Parity classes for 8 bits. Exact: the largest magnitudes of blocks, and codes beside the search of bitsandbytes' CUDA
kernels, which is written out here. Within 2 ulp: the code tables. Bounded: everything that bitsandbytes computes on a CPU,
because its 0.50 looks codes up in 65536 bins, so that codes of skewed values are several steps away from the nearest.
"""

import json
import math
import pathlib
import re
import subprocess

import numpy as np
import torch

from suite import Suite

try:
    import bitsandbytes
    from bitsandbytes.functional import create_dynamic_map
except ImportError:
    print("skipped: bitsandbytes is not installed; tests/interop/setup installs it")
    raise SystemExit(77)

BLOCK, STEPS, LR, DECAY = 256, 50, 1e-3, 0.1
suite = Suite(__doc__)
program = pathlib.Path(suite.args.chassis).parent / "chassis-optimizer"
torch.manual_seed(1)


def table(name, count):
    header = pathlib.Path(__file__).parent.parent.parent / "sdk/cpp/chassis/dynamic_code.hpp"
    found = re.search(name + r"\[\d+\] = \{(.*?)\}", header.read_text(), re.DOTALL).group(1)
    bits = np.array([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", found)], dtype=np.uint32)
    assert len(bits) == count
    return bits.view(np.float32)


positive = table("kDynamicSignedBits", 127)
signed = torch.from_numpy(np.concatenate([-positive[::-1], np.zeros(1, np.float32), positive, np.ones(1, np.float32)]))
unsigned = torch.from_numpy(np.concatenate([np.zeros(1, np.float32), table("kDynamicUnsignedBits", 254), np.ones(1, np.float32)]))
for name, ours, theirs in (("signed", signed, create_dynamic_map(True)), ("unsigned", unsigned, create_dynamic_map(False))):
    ulp = (ours.view(torch.int32).long() - theirs.view(torch.int32).long()).abs().max().item()
    suite.at_most(f"{name} code: ulp", ulp, 2)


def nearest(code, x):
    """The search of bitsandbytes' CUDA kernels (dQuantize), all elements at once."""
    pivot = torch.full(x.shape, 127)
    above, below = torch.full(x.shape, 255), torch.zeros(x.shape, dtype=torch.long)
    for step in (64, 32, 16, 8, 4, 2, 1):
        up = x > code[pivot]
        below, above = torch.where(up, pivot, below), torch.where(up, above, pivot)
        pivot = torch.where(up, pivot + step, pivot - step)
    up = x > code[pivot]
    higher = torch.where(x > (code[above] + code[pivot]) * 0.5, above, pivot)
    lower = torch.where(x < (code[below] + code[pivot]) * 0.5, below, pivot)
    return torch.where(up, higher, lower)


def steps_of(plugin, start, grads, **options):
    """The parameter and the states after each step, as flat tensors; the parameter first."""
    rows, columns = start.shape
    source, out = suite.folder / "steps.in", suite.folder / "steps.out"
    with open(source, "wb") as file:
        file.write(np.array([LR, DECAY]).tobytes())
        for tensor in (start, *grads):
            file.write(tensor.contiguous().numpy().tobytes())
    command = [program, plugin, rows, columns, len(grads), 2, source, out]
    for key, value in options.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=300)
    n, blocks = rows * columns, -(-rows * columns // BLOCK)
    layout = {"adamw8bit": [("f4", n), ("u1", n), ("f4", blocks), ("u1", n), ("f4", blocks)],
              "lion": [("f4", n), ("f4", n)], "muon": [("f4", n), ("f4", n)]}[plugin]
    data, at, result = out.read_bytes(), 0, []
    for _ in grads:
        tensors = []
        for dtype, count in layout:
            size = count * np.dtype(dtype).itemsize
            tensors.append(torch.from_numpy(np.frombuffer(data[at:at + size], dtype=dtype).copy()))
            at += size
        result.append(tensors)
    assert at == len(data)
    return result


def by_blocks(x):
    return torch.nn.functional.pad(x, (0, -len(x) % BLOCK)).reshape(-1, BLOCK)


def spread(absmax, n):
    return absmax.repeat_interleave(BLOCK)[:n]


def root_of(x):
    """torch's root of vectors is not rounded correctly."""
    return torch.from_numpy(np.sqrt(x.numpy()))


def emulated(start, grads, order):
    """The step of bitsandbytes in torch: on the CPU ("torch", decay first) or in its CUDA kernels ("bnb")."""
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    f = lambda x: torch.tensor(x, dtype=torch.float64).float()
    p, n = start.flatten().clone(), start.numel()
    c1, c2 = torch.full((n,), 127), torch.zeros(n, dtype=torch.long)
    a1 = a2 = torch.zeros(-(-n // BLOCK))
    for number, grad in enumerate(grads, 1):
        g = grad.flatten()
        m = signed[c1] * spread(a1, n) * f(beta1) + f(1 - beta1) * g
        v = unsigned[c2] * spread(a2, n) * f(beta2) + f(1 - beta2) * g * g
        root = math.sqrt(1 - beta2**number)
        update = f(-LR * root / (1 - beta1**number)) * m / (root_of(v) + f(root * eps))
        p = p * f(1 - LR * DECAY) + update if order == "torch" else (p + update) * f(1 - LR * DECAY)
        a1, a2 = by_blocks(m).abs().amax(1), by_blocks(v).amax(1)
        c1, c2 = nearest(signed, m / spread(a1, n)), nearest(unsigned, v / spread(a2, n))
        if order == "bnb":
            differ = torch.signbit(signed[c1]) != torch.signbit(m)
            c1 = torch.where(differ, c1 + torch.where(m > 0, 1, -1), c1)
    return [p, c1, a1, c2, a2]


def drift(ours, theirs, start):
    return ((ours - theirs).double().norm() / (theirs - start.flatten()).double().norm()).item()


# --- adamw8bit --------------------------------------------------------------------------------------------------------
for name, shape, scale in (("normal", (96, 128), lambda x: x), ("ragged", (37, 1117), lambda x: x),
                           ("heavy tails", (64, 512), lambda x: x * torch.exp(2 * torch.randn_like(x)))):
    if suite.args.only not in name:
        continue
    start = torch.randn(shape)
    grads = [scale(torch.randn(shape)) for _ in range(STEPS)]
    for order in ("torch", "bnb"):
        ours = steps_of("adamw8bit", start, grads, order=order)[-1]
        for what, got, wanted in zip(("parameters", "codes", "absmax", "codes of squares", "absmax of squares"), ours,
                                     emulated(start, grads, order)):
            wrong = (got != wanted.to(got.dtype)).sum().item()
            suite.check(f"{name}, {order}: {what} exact after {STEPS} steps", wrong == 0, f"{wrong} of {len(got)} differ")

    # Very small squares next to large ones have code 0 as their nearest, and then take steps of m / eps.
    ours = steps_of("adamw8bit", start, grads, nonzero_squares=name == "heavy tails")
    theirs = torch.nn.Parameter(start.clone())
    optimizer = bitsandbytes.optim.AdamW8bit([theirs], lr=LR, weight_decay=DECAY, min_8bit_size=4096)
    exact = torch.nn.Parameter(start.clone())
    reference = torch.optim.AdamW([exact], lr=LR, weight_decay=DECAY)
    for number, grad in enumerate(grads):
        theirs.grad, exact.grad = grad.clone(), grad.clone()
        optimizer.step()
        reference.step()
        if number == 0:
            state = optimizer.state[theirs]
            equal = torch.equal(state["absmax1"].flatten(), ours[0][2]) and torch.equal(state["absmax2"].flatten(), ours[0][4])
            close = max((state["absmax1"].flatten() / ours[0][2] - 1).abs().max().item(),
                        (state["absmax2"].flatten() / ours[0][4] - 1).abs().max().item())
            suite.at_most(f"{name}: absmax of bitsandbytes after a step", close, 2e-7, "equal" if equal else "1 ulp")
            far = (state["state1"].flatten().int() - ours[0][1].int()).abs()
            suite.at_most(f"{name}: codes of bitsandbytes after a step, steps apart", far.max().item(), 7,
                          f"{(far != 0).float().mean().item():.2%} differ")
    ours_drift, their_drift = drift(ours[-1][0], exact.data.flatten(), start), drift(theirs.data.flatten(), exact.data.flatten(), start)
    suite.check(f"{name}: as near to AdamW as bitsandbytes", ours_drift <= 1.02 * their_drift, f"{ours_drift:.4f} and {their_drift:.4f}")
    suite.at_most(f"{name}: distance to bitsandbytes", drift(ours[-1][0], theirs.data.flatten(), start), 0.2)

if suite.args.only:
    suite.close()

# --- lion and muon ----------------------------------------------------------------------------------------------------
start, grads = torch.randn(96, 160), [torch.randn(96, 160) for _ in range(10)]
theirs = torch.nn.Parameter(start.clone())
optimizer = bitsandbytes.optim.Lion32bit([theirs], lr=LR, betas=(0.9, 0.99), weight_decay=DECAY)
for grad in grads:
    theirs.grad = grad.clone()
    optimizer.step()
suite.at_most("lion beside bitsandbytes' Lion32bit", drift(steps_of("lion", start, grads)[-1][0], theirs.data.flatten(), start), 1e-3)

for shape in ((96, 160), (160, 96)):
    for adjust in ("original", "match_rms_adamw"):
        start, grads = torch.randn(shape), [torch.randn(shape) for _ in range(10)]
        for name, precision, limit in (("its iteration in fp32", "fp32", 1e-5), ("in bf16 as it is", "fp32", 3e-2),
                                       ("in bf16, both", "bf16", 1e-2)):
            ours = steps_of("muon", start, grads, adjust_lr=adjust, precision=precision)[-1][0]
            theirs = torch.nn.Parameter(start.clone())
            optimizer = torch.optim.Muon([theirs], lr=LR, weight_decay=DECAY, adjust_lr_fn=adjust)
            bfloat16 = torch.Tensor.bfloat16
            if "fp32" in name:
                torch.Tensor.bfloat16 = torch.Tensor.float
            try:
                for grad in grads:
                    theirs.grad = grad.clone()
                    optimizer.step()
            finally:
                torch.Tensor.bfloat16 = bfloat16
            suite.at_most(f"muon {list(shape)}, {adjust}, beside torch.optim.Muon, {name}", drift(ours, theirs.data.flatten(), start), limit)
suite.close()
