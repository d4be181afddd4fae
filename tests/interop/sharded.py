"""Saves of several processes, read by others: every strategy exports the same file, which holds the model bit for bit,
and torch.distributed.checkpoint reads the shards of a checkpoint correctly."""

import hashlib
import json
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from transformers import LlamaForCausalLM

import models
from suite import Suite

# Name → (processes, tables of the configuration).
CASES = {
    "alone": (1, {}),
    "ddp_2": (2, {"parallel": [{"plugin": "ddp"}]}),
    "fsdp2_2": (2, {"parallel": [{"plugin": "fsdp2"}]}),
    "fsdp2_4": (4, {"parallel": [{"plugin": "fsdp2"}]}),
    "hsdp_4": (4, {"mesh": {"dp_replicate": 2, "dp_shard": 2}, "parallel": [{"plugin": "fsdp2"}]}),
    "zero1_2": (2, {"parallel": [{"plugin": "zero", "stage": 1}]}),
    "zero2_3": (3, {"parallel": [{"plugin": "zero", "stage": 2}]}),
    "zero3_3": (3, {"parallel": [{"plugin": "zero", "stage": 3}]}),
    "zero3_4": (4, {"parallel": [{"plugin": "zero", "stage": 3}]}),
}


def merged(shards):
    """Whole tensors, put together by the DCP_SHARDING_INFO of each file."""
    whole, seen = {}, {}
    for file in shards:
        with safe_open(file, "pt") as shard:
            info = json.loads(shard.metadata()["DCP_SHARDING_INFO"])
            for name in shard.keys():
                part = shard.get_tensor(name)
                if name not in whole:
                    whole[name] = torch.empty(info[name]["global_shape"], dtype=part.dtype)
                    seen[name] = 0
                box = tuple(slice(begin, begin + size) for begin, size in zip(info[name]["saved_offsets"], part.shape))
                whole[name][box] = part
                seen[name] += part.numel()
    assert all(seen[name] == tensor.numel() for name, tensor in whole.items())
    return whole


suite = Suite(__doc__)
data = suite.folder / "tokens.jsonl"
data.write_text("".join(json.dumps({"input_ids": [(7 * row + i) % 100 for i in range(32)]}) + "\n" for row in range(40)))
source = models.save(models.make(seed=300, vocab_size=131, hidden_size=36, intermediate_size=57, attention_bias=True,
                                 num_attention_heads=6), suite.folder / "source")
before = load_file(source / "model.safetensors")
exports = {}
for name, (processes, tables) in CASES.items():
    if suite.args.only not in name:
        continue
    config = suite.config(name, source, optimizer={"lr": 0.0}, checkpoint={"bucket_mib": 1},
                          train={"micro_batch_size": 1, "global_batch_size": 12}, **tables)
    suite.run("train", config, "--nproc", processes)
    run = suite.folder / (name + "-run")

    after = load_file(run / "final" / "model.safetensors")
    exports[name] = hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    changed = [key for key in before.keys() | after.keys()
               if key not in before or key not in after or not torch.equal(before[key], after[key])]
    suite.check(f"{name}: every tensor of the export bit for bit", not changed, " ".join(changed))
    _, info = LlamaForCausalLM.from_pretrained(run / "final", output_loading_info=True, dtype="auto")
    suite.check(f"{name}: no missing or unexpected key", not any(info.values()))

    shards = run / "checkpoints" / "step-000001" / "sharded"
    files = sorted(shards.glob("*.safetensors"))
    ours = merged(files)
    theirs = {key: torch.zeros_like(tensor) for key, tensor in ours.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that only one process loads
        dcp.load(theirs, storage_reader=HuggingFaceStorageReader(str(shards)), no_dist=True)
    different = [key for key in ours if not torch.equal(ours[key], theirs[key])]
    moments = [key for key in ours if key.endswith(".exp_avg") and bool(theirs[key].any())]
    suite.check(f"{name}: torch.distributed.checkpoint reads {len(files)} files", not different, " ".join(different))
    suite.check(f"{name}: with moments", len(moments) > 20, f"{len(moments)}")
suite.check("the same export from all", len(set(exports.values())) == 1, str(len(exports)))
suite.close()
