"""Trains a model directory for three steps with DeepSpeed, under torchrun. Writes DeepSpeed's checkpoint and after.pt,
the weights one step later, into a folder.

    torchrun --nproc-per-node N deepspeed_run.py MODEL FOLDER '{"stage": 2, "dtype": "bf16", "frozen": "…"}'
"""

import json
import os
import re
import sys
import warnings

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param
from transformers import LlamaForCausalLM

warnings.simplefilter("ignore")
model_directory, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
deepspeed.init_distributed(dist_backend="gloo")
rank = torch.distributed.get_rank()
model = LlamaForCausalLM.from_pretrained(model_directory, dtype=torch.float32, attn_implementation="eager")
for name, parameter in model.named_parameters():
    parameter.requires_grad_(not (options.get("frozen") and re.search(options["frozen"], name)))
trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
groups = [{"params": [p for name, p in trained if p.dim() > 1]}, {"params": [p for name, p in trained if p.dim() == 1]}]
config = {
    "train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
    # Small sub-groups: parameters straddle them.
    "zero_optimization": {"stage": options["stage"], "stage3_param_persistence_threshold": 0, "sub_group_size": 3000,
                          **options.get("zero", {})},
    **({options["dtype"]: {"enabled": True, **options.get("scaling", {})}} if options["dtype"] != "fp32" else {}),
}
# DeepSpeed requires fp16 instructions of the CPU; PyTorch can compute without them.
get_accelerator().is_fp16_supported = lambda: True
optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-4, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, lr_scheduler=scheduler)


def step(ids):
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()


generator = torch.Generator().manual_seed(rank)
for _ in range(3):
    step(torch.randint(0, model.config.vocab_size, (1, 24), generator=generator))
engine.save_checkpoint(folder, client_state={"epoch": 1, "note": "of the user", "best": float("inf"), "big": 2**40})
step(torch.tensor([json.loads(line)["input_ids"] for line in open(folder + "/next.jsonl")][rank:rank + 1]))
after = {name: safe_get_full_fp32_param(p) for name, p in trained}
if rank == 0:
    torch.save({key: value.clone() for key, value in after.items()}, folder + "/after.pt")
torch.distributed.barrier()
os._exit(0)  # otherwise gloo's threads would end the interpreter
