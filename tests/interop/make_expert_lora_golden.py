"""Writes tests/golden/lora_experts: tiny models of experts, adapters on them, and the models that peft has merged, so that
the default tests can compare with peft without Python. Run it by hand, make_expert_lora_golden.py FOLDER, with peft 0.21,
and with peft 0.18 for the folder that has this version in its name."""

import json
import pathlib
import shutil
import sys

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

import models

FUSED = dict(target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"])
# By the name of the folder: the family, and what peft adapts. Targets of transformers 4 are None here.
CASES = {"mixtral_peft_0.18": ("mixtral", FUSED)} if peft.__version__.startswith("0.18") else {
    "mixtral": ("mixtral", FUSED), "llama4": ("llama4_text", FUSED), "mixtral_transformers_4": ("mixtral", None)}

folder = pathlib.Path(sys.argv[1])
for name, (family, lora) in CASES.items():
    base, adapter, merged = (folder / name / part for part in ("base", "adapter", "merged"))
    model = models.make(seed=1, family=family, vocab_size=17, hidden_size=12, intermediate_size=10, num_hidden_layers=1,
                        num_attention_heads=2, num_key_value_heads=1, head_dim=6, num_local_experts=3,
                        **({"intermediate_size_mlp": 14} if family == "llama4_text" else {}))
    models.save(model, base)
    generator = torch.Generator().manual_seed(2)
    if lora is None:
        adapter.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for expert in range(3):
            for linear, out, into in (("w1", 10, 12), ("w2", 12, 10), ("w3", 10, 12)):
                module = f"base_model.model.model.layers.0.block_sparse_moe.experts.{expert}.{linear}"
                tensors[module + ".lora_A.weight"] = 0.3 * torch.randn(2, into, generator=generator)
                tensors[module + ".lora_B.weight"] = 0.3 * torch.randn(out, 2, generator=generator)
        save_file(tensors, adapter / "adapter_model.safetensors")
        LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=6, target_modules=["w1", "w2", "w3"]).save_pretrained(adapter)
        adapted = PeftModel.from_pretrained(model, adapter)
    else:
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=6, **lora))
        with torch.no_grad():
            for key, parameter in adapted.named_parameters():
                if "lora_" in key:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        adapted.save_pretrained(adapter)
    config = adapter / "adapter_config.json"
    text = {**json.loads(config.read_text()), "base_model_name_or_path": "base"}
    config.write_text(json.dumps({key: sorted(value) if isinstance(value, list) else value for key, value in text.items()}, indent=2) + "\n")
    adapted.merge_and_unload().save_pretrained(merged)
    tensors = {key: value for file in merged.glob("*.safetensors") for key, value in load_file(file).items()}
    save_file(tensors, folder / name / "merged.safetensors")
    shutil.rmtree(merged)
    for file in (adapter / "README.md", base / "generation_config.json"):
        file.unlink(missing_ok=True)
