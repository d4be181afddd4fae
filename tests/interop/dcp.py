"""Shards that torch.distributed.checkpoint writes in Hugging Face's format, read as a base model: several processes
save a model sharded by FSDP2, chassis trains it for a step with a learning rate of zero, and every tensor of the
export equals the model's bit for bit, on one process and on two."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import torch

if "--worker" in sys.argv:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaForCausalLM

    source, folder, dtype = sys.argv[2:5]
    dist.init_process_group("gloo")
    model = LlamaForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = get_model_state_dict(model)
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=folder, save_distributed=True))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)

from safetensors import safe_open
from safetensors.torch import load_file

import models
from suite import Suite

# Name → (processes that save, changes of the model, dtype).
CASES = {
    "two": (2, dict(attention_bias=True, head_dim=10), "float32"),
    "three_bf16": (3, {}, "bfloat16"),  # 131 rows are not divisible by 3
}

suite = Suite(__doc__)
(suite.folder / "tokens.jsonl").write_text(json.dumps({"input_ids": [number % 100 for number in range(200)]}) + "\n")
for number, (name, (processes, changes, dtype)) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    source = models.save(models.make(seed=500 + number, **changes).to(getattr(torch, dtype)), suite.folder / name)
    shards = suite.folder / (name + "-shards")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", __file__, "--worker", source, shards, dtype]
    result = subprocess.run(list(map(str, command)), capture_output=True, timeout=300)
    if result.returncode != 0:
        sys.stderr.buffer.write(result.stderr[-4000:])
        raise SystemExit(f"{name}: torch.distributed.checkpoint ended with {result.returncode}")
    files = sorted(shards.glob("*.safetensors"))
    metadata = [safe_open(file, "pt").metadata() for file in files]
    suite.check(f"{name}: {len(files)} files with DCP_SHARDING_INFO",
                len(files) >= processes and all("DCP_SHARDING_INFO" in one for one in metadata))
    for file in ("config.json", "generation_config.json"):
        shutil.copy(source / file, shards / file)

    before = load_file(source / "model.safetensors")
    for ranks in (1, 2):
        config = suite.config(f"{name}-{ranks}", shards, optimizer={"lr": 0.0}, train={"micro_batch_size": 1, "global_batch_size": 2},
                              data={"cache_dir": str(suite.folder)}, **({"parallel": [{"plugin": "fsdp2"}]} if ranks > 1 else {}))
        suite.run("train", config, "--nproc", ranks)
        after = load_file(suite.folder / f"{name}-{ranks}-run" / "final" / "model.safetensors")
        changed = [key for key in before.keys() | after.keys() if key not in before or key not in after or
                   before[key].dtype != after[key].dtype or not torch.equal(before[key], after[key])]
        suite.check(f"{name}: every tensor bit for bit on {ranks}", not changed, " ".join(changed[:5]))

    # A missing shard is an error; other readers return a smaller tensor.
    missing = suite.folder / (name + "-missing")
    shutil.copytree(shards, missing)
    sorted(missing.glob("*.safetensors"))[-1].unlink()
    suite.run("train", suite.config(f"{name}-missing", missing, data={"cache_dir": str(suite.folder)}), code=7)
    suite.check(f"{name}: a missing shard is refused", True)
suite.close()
