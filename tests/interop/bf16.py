"""Logits in bfloat16 of chassis and of transformers, each compared with float32. Both round after every operation and
so differ from each other; the error of chassis may be at most 1.5 times that of transformers."""

import torch
from transformers import LlamaForCausalLM

import models
from suite import Suite, relative_l2

suite = Suite(__doc__)
for number, name in enumerate(["gqa", "attention_bias", "head_dim_10", "rope_llama3", "everything"]):
    changes, saved = models.CASES[name]
    folder = models.save(models.make(seed=400 + number, **changes), suite.folder / name, **saved)
    ids = torch.randint(0, 131, (2, 77), generator=torch.Generator().manual_seed(number))
    load = lambda dtype: LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    with torch.no_grad():
        exact, rounded = load(torch.float32)(ids).logits, load(torch.bfloat16)(ids).logits.float()
    config = suite.config(name, folder, train={"seq_len": 77, "micro_batch_size": 2}, precision={"compute": "bf16"})
    ours, theirs = relative_l2(suite.logits(config, ids), exact), relative_l2(rounded, exact)
    suite.check(f"{name}: bfloat16 logits", 2**-12 < ours <= 1.5 * theirs,
                f"relative distance to float32: ours {ours:.1e}, transformers' {theirs:.1e}")
suite.close()
