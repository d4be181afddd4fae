"""LoRA beside peft: ten steps from the same adapter, whose B is not zero, in float32. Files go both ways, and the merged
models have the same logits."""

import copy
import dataclasses
import json
import re

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models
from loop import DECAY, MICRO, STEPS, WARMUP, documents, train
from suite import Suite, error, metrics

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclasses.dataclass
class Case:
    model: dict
    lora: dict
    ours: dict = dataclasses.field(default_factory=dict)  # the same adapter as options of [adapter]
    packing: str = "concat_split"
    lengths: tuple = (3, 130)
    seq_len: int = 48
    global_batch: int = 8
    clip: float = 1.05
    lr: float = 2e-3

    def make_optimizer(self, groups):
        return torch.optim.AdamW(groups, lr=self.lr, eps=1e-4, betas=(0.9, 0.95))


CASES = {
    "llama": Case({}, dict(r=4, lora_alpha=8, target_modules=LINEAR), dict(rank=4, alpha=8.0)),
    "llama_rslora": Case(dict(tie_word_embeddings=True), dict(r=5, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj"]),
                         dict(rank=5, alpha=3.0, use_rslora=True, targets=["q_proj", "v_proj"]), clip=0.45),
    "llama_patterns": Case(dict(num_key_value_heads=1), dict(r=4, lora_alpha=16, target_modules=r".*\.(q|down)_proj",
                                                              exclude_modules=["layers.2.self_attn.q_proj"],
                                                              rank_pattern={"down_proj": 7}, alpha_pattern={r"layers\.1\.mlp\.down_proj": 3}),
                           dict(rank=4, alpha=16.0, targets=[r".*\.(q|down)_proj"], exclude=["layers.2.self_attn.q_proj"],
                                rank_pattern={"down_proj": 7}, alpha_pattern={r"layers\.1\.mlp\.down_proj": 3.0}), clip=0.6),
    "llama_layers": Case(dict(head_dim=20), dict(r=3, lora_alpha=6, target_modules=["o_proj", "up_proj"], layers_to_transform=[0, 1]),
                         dict(rank=3, alpha=6.0, targets=["o_proj", "up_proj"], layers="0:2"), packing="none", lengths=(5, 49), clip=0.6),
    "llama_saved": Case({}, dict(r=4, lora_alpha=8, target_modules=LINEAR, modules_to_save=["lm_head", "embed_tokens"]),
                        dict(rank=4, alpha=8.0, modules_to_save=["lm_head", "embed_tokens"]), clip=1.45),
    "llama_tied_saved": Case(dict(tie_word_embeddings=True), dict(r=4, lora_alpha=8, target_modules=["v_proj"], modules_to_save=["embed_tokens"],
                                                                  ensure_weight_tying=True),
                             dict(rank=4, alpha=8.0, targets=["v_proj"], modules_to_save=["embed_tokens"]), clip=1.3),
    "qwen2": Case(dict(family="qwen2"), dict(r=4, lora_alpha=8, target_modules=LINEAR), dict(rank=4, alpha=8.0), clip=0.8),
    "qwen2_bias": Case(dict(family="qwen2", tie_word_embeddings=True), dict(r=4, lora_alpha=8, target_modules=LINEAR, bias="lora_only"),
                       dict(rank=4, alpha=8.0, bias="lora_only"), packing="none", lengths=(5, 49), clip=1.2),
    "gemma2": Case(dict(family="gemma2", sliding_window=11), dict(r=4, lora_alpha=8, target_modules=LINEAR), dict(rank=4, alpha=8.0), clip=0.68),
    "gemma3": Case(dict(family="gemma3_text", sliding_window=11), dict(r=6, lora_alpha=12, target_modules=LINEAR), dict(rank=6, alpha=12.0), clip=0.9),
    "qwen3": Case(dict(family="qwen3"), dict(r=4, lora_alpha=8, target_modules=LINEAR), dict(rank=4, alpha=8.0), clip=0.9),
    "mistral": Case(dict(family="mistral"), dict(r=4, lora_alpha=8, target_modules=LINEAR), dict(rank=4, alpha=8.0), clip=0.9),
    # peft also writes a copy of the head's weight, lm_head.base_layer.weight, which is skipped here.
    "llama_head": Case({}, dict(r=4, lora_alpha=8, target_modules=["q_proj", "lm_head"]),
                       dict(rank=4, alpha=8.0, targets=["q_proj", "lm_head"]), clip=0.34),
}


def largest_relative(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def adapted(model, case, number):
    """The model with an adapter whose B is not zero, so that A has a gradient from the first step on."""
    peft = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **case.lora))
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return peft


def shapes(tensors):
    """Without the biases of "lora_only", which peft 0.18 trains and loads, but does not write, and without the copy of a
    head's weight, which it writes beside a branch on the head."""
    return {key: value.shape for key, value in tensors.items() if ".base_layer." not in key}


suite = Suite(__doc__)
for number, (name, case) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=300 + number, **case.model)
    source = models.save(model, suite.folder / name, max_shard_size="100KB")
    peft = adapted(model, case, number)
    theirs = suite.folder / (name + "-peft")
    peft.save_pretrained(theirs)
    rows = documents(number, model.config.vocab_size, case.lengths, 70)
    data = suite.folder / (name + ".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = dict(data={"packing": case.packing, "shuffle": False, "cache_dir": str(suite.folder)},
                  data__train=[{"path": str(data), "format": "tokens"}],
                  train={"seq_len": case.seq_len, "micro_batch_size": MICRO, "global_batch_size": case.global_batch},
                  optimizer={"lr": case.lr, "weight_decay": DECAY, "max_grad_norm": case.clip, "eps": 1e-4, "betas": [0.9, 0.95]},
                  schedule={"name": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": 0.1})
    config = suite.config(name, source, run={"max_steps": STEPS}, adapter={"plugin": "lora", "path": str(theirs)}, **shared)
    ids = torch.randint(0, model.config.vocab_size, (2, case.seq_len), generator=torch.Generator().manual_seed(number))

    # Their adapter, before training.
    loaded = suite.config(name + "-loaded", source, adapter={"plugin": "lora", "path": str(theirs)},
                          train={"seq_len": case.seq_len, "micro_batch_size": 2})
    with torch.no_grad():
        suite.at_most(f"{name} logits of their adapter", error(suite.logits(loaded, ids), peft.eval()(ids).logits), 1e-5)

    suite.run("train", config)
    run = suite.folder / (name + "-run")
    lines = metrics(run)
    exact, trained = copy.deepcopy(peft).double().train(), peft.train()
    exact_losses, _, _ = train(exact, rows, case)
    losses, norms, counts = train(trained, rows, case)
    print(f"     {name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norms {min(norms):.2f} … {max(norms):.2f}")
    suite.check(f"{name} clips some steps, trains unequal counts", min(norms) < case.clip < max(norms) and len(set(counts)) > 1,
                f"{min(norms):.3f} < {case.clip} < {max(norms):.3f}")
    ours = [line["loss"] for line in lines]
    suite.at_most(f"{name} losses", largest_relative(ours, losses), 2e-6,
                  f"to float64: ours {largest_relative(ours, exact_losses):.1e}, theirs {largest_relative(losses, exact_losses):.1e}")

    final = load_file(run / "final" / "adapter_model.safetensors")
    state = get_peft_model_state_dict(trained)
    suite.check(f"{name} adapter_model.safetensors has peft's names and shapes",
                shapes(final) == shapes(state),
                str(sorted(final.keys() ^ state.keys())[:6]))
    both = final.keys() & state.keys()
    suite.at_most(f"{name} adapter weights", max(error(final[key], state[key]) for key in both), 2e-6)
    before = load_file(theirs / "adapter_model.safetensors")
    suite.check(f"{name} every tensor moved", all(not torch.equal(before[key], final[key]) for key in both))

    # Our adapter in peft.
    trained.eval()
    base = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
    again = PeftModel.from_pretrained(base, run / "final").eval()
    with torch.no_grad():
        expected = trained(ids).logits
        suite.at_most(f"{name} logits of our adapter in peft", error(again(ids).logits, expected), 2e-5)
    said = json.loads((run / "final" / "adapter_config.json").read_text())
    suite.check(f"{name} adapter_config.json", said["r"] == case.lora["r"] and said["lora_alpha"] == case.lora["lora_alpha"]
                and said["base_model_name_or_path"] == str(source))

    # Merged, by both.
    merged = suite.folder / (name + "-merged")
    suite.run("ckpt", "merge", run, "--out", merged)
    ours_merged, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True, attn_implementation="eager")
    suite.check(f"{name} transformers loads the merged model", not any(info.values()), str({k: list(v)[:3] for k, v in info.items()}))
    with torch.no_grad():
        suite.at_most(f"{name} logits merged, to peft's merged", error(ours_merged.eval()(ids).logits,
                                                                       again.merge_and_unload()(ids).logits), 1e-5)
    suite.at_most(f"{name} logits merged, by chassis", error(suite.logits(suite.config(
        name + "-merged-logits", merged, train={"seq_len": case.seq_len, "micro_batch_size": 2}), ids), expected), 2e-5)

    # The same adapter from options: names and shapes.
    own = suite.config(name + "-own", source, run={"max_steps": WARMUP}, adapter={"plugin": "lora", **case.ours}, **shared)
    suite.run("train", own)
    fresh = load_file(suite.folder / (name + "-own-run") / "final" / "adapter_model.safetensors")
    suite.check(f"{name} options give the same tensors", shapes(fresh) == shapes(state),
                str(sorted(fresh.keys() ^ state.keys())[:6]))
    scales = {key: value for key, value in json.loads((suite.folder / (name + "-own-run") / "final" / "adapter_config.json").read_text()).items()
              if key in ("r", "lora_alpha", "use_rslora", "bias")}
    suite.check(f"{name} options give the same settings", all(case.lora.get(key, "none" if key == "bias" else False) == value
                                                              for key, value in scales.items()), str(scales))
suite.close()
