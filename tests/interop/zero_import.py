"""Imports of checkpoints that DeepSpeed's ZeRO saved: every weight and moment equals that of DeepSpeed's own converter bit
for bit; transformers reads the model directory; a run resumed from the imported checkpoint takes the same next step as
DeepSpeed."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

import models
from suite import Suite, error

os.environ["DS_ACCELERATOR"] = "cpu"
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

# Name → (ranks, changes of the model, options of deepspeed_run.py).
CASES = {
    "zero1_bf16": (2, {}, dict(stage=1, dtype="bf16")),
    "zero2_bf16_three_ranks": (3, {}, dict(stage=2, dtype="bf16")),
    # The loss scale is 2^8, dynamic or static.
    "zero1_fp16": (3, {}, dict(stage=1, dtype="fp16", scaling={"initial_scale_power": 8})),
    "zero2_fp16_static": (2, {}, dict(stage=2, dtype="fp16", scaling={"loss_scale": 256})),
    "zero3_fp16_tied": (2, dict(tie_word_embeddings=True), dict(stage=3, dtype="fp16", scaling={"initial_scale_power": 8})),
    "zero3_bf16_tied": (2, dict(tie_word_embeddings=True), dict(stage=3, dtype="bf16")),
    "zero1_frozen_tied": (2, dict(tie_word_embeddings=True), dict(stage=1, dtype="fp32", frozen="up_proj")),
    "zero2_round_robin": (2, {}, dict(stage=2, dtype="bf16", zero={"round_robin_gradients": True, "elastic_checkpoint": True})),
    "zero2": (2, {}, dict(stage=2, dtype="fp32")),
    "zero3_three_ranks_frozen": (3, {}, dict(stage=3, dtype="fp32", frozen="k_proj")),
    "zero3": (2, {}, dict(stage=3, dtype="fp32")),
}
RESUMED = ("zero2", "zero3")  # in fp32, so that both compute the same

suite = Suite(__doc__)
here = pathlib.Path(__file__).parent


def train(name, ranks, source, options):
    folder = suite.folder / (name + "-zero")
    folder.mkdir()
    rows = torch.randint(0, 131, (ranks, 24), generator=torch.Generator().manual_seed(77)).tolist()
    (folder / "next.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", here / "deepspeed_run.py",
               source, folder, json.dumps(options)]
    result = subprocess.run(list(map(str, command)), capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode != 0:
        sys.stderr.buffer.write(result.stderr[-4000:])
        raise SystemExit(f"{name}: DeepSpeed ended with {result.returncode}")
    return folder


def convert(folder):
    """The weights that DeepSpeed's converter reads from a checkpoint."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = get_fp32_state_dict_from_zero_checkpoint(str(folder), exclude_frozen_parameters=False)
    return {key: value.contiguous().float() for key, value in found.items()}


def convert_moments(folder, key):
    """The same for a copy in which one of the optimizer's states replaces the master weights."""
    copy = folder.parent / f"{folder.name}-{key}"
    shutil.copytree(folder, copy)
    for path in copy.glob("*/*_optim_states.pt"):
        saved = torch.load(path, weights_only=False)
        optimizer = saved["optimizer_state_dict"]
        is_stage3 = "fp32_flat_groups" in optimizer
        base = optimizer["optimizer_state_dict" if is_stage3 else "base_optimizer_state"]
        states = dict(enumerate(base)) if isinstance(base, list) else base["state"]
        masters = "fp32_flat_groups" if is_stage3 else "single_partition_of_fp32_groups"
        optimizer[masters] = [states[i][key] for i in sorted(states)]
        torch.save(saved, path)
    return {f"{name}.{key}": value for name, value in convert(copy).items()}


def merged(directory):
    return {key: value for file in sorted(directory.glob("**/*.safetensors")) for key, value in load_file(file).items()}


for number, (name, (ranks, changes, options)) in enumerate(CASES.items()):
    if suite.args.only not in name + "$":
        continue
    # Groups of parameters that neither two nor three ranks can divide without padding.
    sizes = dict(hidden_size=42, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=3) if ranks == 2 else \
            dict(hidden_size=40, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    source = models.save(models.make(seed=400 + number, intermediate_size=57, attention_bias=True, **sizes, **changes), suite.folder / name)
    folder = train(name, ranks, source, options)
    theirs = convert(folder)
    if changes.get("tie_word_embeddings"):
        theirs.pop("lm_head.weight")
    # Stages 1 and 2 of DeepSpeed do not list frozen parameters when nothing is cast, and its converter loses them.
    before = load_file(source / "model.safetensors")
    theirs |= {key: value for key, value in before.items() if options.get("frozen", "-") in key}

    model, checkpoint = suite.folder / (name + "-model"), suite.folder / (name + "-checkpoint")
    suite.run("ckpt", "import-zero", folder, model, "--base", source)
    ours = merged(model)
    suite.check(f"{name}: names", ours.keys() == theirs.keys(), f"{len(ours)} of {len(theirs)} {sorted(ours.keys() ^ theirs.keys())[:3]}")
    different = [key for key in ours.keys() & theirs.keys() if not torch.equal(ours[key], theirs[key])]
    suite.check(f"{name}: every weight bit for bit", not different, " ".join(different))
    _, info = LlamaForCausalLM.from_pretrained(model, output_loading_info=True, dtype="auto")
    suite.check(f"{name}: no missing or unexpected key", not any(info.values()), str({k: v for k, v in info.items() if v}))

    suite.run("ckpt", "import-zero", folder, checkpoint, "--checkpoint")
    whole = merged(checkpoint)
    moments = convert_moments(folder, "exp_avg") | convert_moments(folder, "exp_avg_sq")
    moments = {key: value for key, value in moments.items() if options.get("frozen", "-") not in key and not key.startswith("lm_head" if changes else "-")}
    states = {key: value for key, value in whole.items() if key not in ours}
    suite.check(f"{name}: names of moments", states.keys() == moments.keys(), f"{len(states)} of {len(moments)}")
    different = [key for key in states.keys() & moments.keys() if not torch.equal(states[key], moments[key])]
    suite.check(f"{name}: every moment bit for bit", not different, " ".join(different))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    suite.check(f"{name}: step", (manifest["step"], manifest["resumable"]) == (3, True), str(manifest["step"]))
    if name not in RESUMED:
        continue

    config = suite.config(name + "-resumed", source, run={"max_steps": 4, "resume": str(checkpoint)},
                          data__train=[{"path": str(folder / "next.jsonl"), "format": "tokens"}],
                          data={"packing": "none", "shuffle": False, "cache_dir": str(suite.folder)},
                          train={"seq_len": 24, "micro_batch_size": 1, "global_batch_size": ranks}, schedule={"name": "constant"},
                          optimizer={"lr": 1e-3, "eps": 1e-4, "weight_decay": 0.0, "betas": [0.9, 0.999], "max_grad_norm": 0.0})
    suite.run("train", config)
    resumed, after = merged(suite.folder / (name + "-resumed-run") / "final"), torch.load(folder / "after.pt")
    worst = max(error(resumed[key], after[key]) for key in after)
    moved = max(error(after[key], theirs[key]) for key in after)
    suite.at_most(f"{name}: the next step", worst, 2e-6, f"it moves weights by {moved:.1e}")
suite.close()
