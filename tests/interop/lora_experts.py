"""LoRA on experts beside peft: ten steps from the same adapter, whose A and B are not zero, in float32. Files go both
ways, also those in the form of transformers 4, and the merged models have the same logits."""

import copy
import dataclasses
import json
import sys

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models
from loop import DECAY, MICRO, STEPS, WARMUP, documents, train
from suite import Suite, error, metrics

if tuple(int(part) for part in peft.__version__.split(".")[:3]) < (0, 19, 1):
    print(f"skipped: peft {peft.__version__} exchanges in and out of experts; 0.19.1 does not")
    sys.exit(77)

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BOTH = ["experts.gate_up_proj", "experts.down_proj"]


@dataclasses.dataclass
class Case:
    model: dict
    lora: dict
    ours: dict  # the same adapter as options of [adapter]
    packing: str = "concat_split"
    lengths: tuple = (3, 130)
    seq_len: int = 48
    global_batch: int = 8
    clip: float = 1.05
    lr: float = 2e-3

    def make_optimizer(self, groups):
        return torch.optim.AdamW(groups, lr=self.lr, eps=1e-4, betas=(0.9, 0.95))


CASES = {
    "mixtral": Case(dict(family="mixtral"), dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH),
                    dict(rank=4, alpha=8.0, target_parameters=BOTH)),
    "mixtral_down": Case(dict(family="mixtral", num_local_experts=3),
                         dict(r=3, lora_alpha=9, target_modules=[], target_parameters=["mlp.experts.down_proj"], use_rslora=True),
                         dict(rank=3, alpha=9.0, targets=[], target_parameters=["mlp.experts.down_proj"], use_rslora=True)),
    "qwen2_moe": Case(dict(family="qwen2_moe"),
                      dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH,
                           rank_pattern={r"experts\.gate_up_proj": 6}, alpha_pattern={r"layers\.1\.mlp\.experts\.down_proj": 3}),
                      dict(rank=4, alpha=8.0, targets=ATTENTION, target_parameters=BOTH, rank_pattern={r"experts\.gate_up_proj": 6},
                           alpha_pattern={r"layers\.1\.mlp\.experts\.down_proj": 3.0})),
    # In and out are equal, so only peft_version tells them apart.
    "qwen3_moe_square": Case(dict(family="qwen3_moe", moe_intermediate_size=32), dict(r=4, lora_alpha=8, target_modules=["q_proj"], target_parameters=BOTH),
                             dict(rank=4, alpha=8.0, targets=["q_proj"], target_parameters=BOTH)),
    "llama4": Case(dict(family="llama4_text"), dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH),
                   dict(rank=4, alpha=8.0, targets=ATTENTION, target_parameters=BOTH)),
}
# Targets of transformers 4: peft converts them, and joins gate and up with twice the rank.
OLDER = {
    "mixtral_older": (dict(family="mixtral"), dict(rank=3, alpha=6.0, targets=["q_proj", "w1", "w2", "w3"])),
    "qwen3_moe_older": (dict(family="qwen3_moe"), dict(rank=2, alpha=8.0, targets=["gate_proj", "up_proj", "down_proj"])),
}


def largest_relative(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def fill(model, number):
    """Values of A and B that are not zero. A and B may change places, so none of them is left as it is."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def shapes(tensors):
    return {key: value.shape for key, value in tensors.items()}


def base_of(source):
    config = dict(attn_implementation="eager")
    model = AutoModelForCausalLM.from_pretrained(source, **config)
    model.config._experts_implementation = "eager"
    return model.eval()


suite = Suite(__doc__)
for number, (name, case) in enumerate(CASES.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=500 + number, **case.model)
    source = models.save(model, suite.folder / name)
    adapted = fill(get_peft_model(base_of(source), LoraConfig(task_type="CAUSAL_LM", **case.lora)), number)
    theirs = suite.folder / (name + "-peft")
    adapted.save_pretrained(theirs)
    rows = documents(number, model.config.vocab_size, case.lengths, 70)
    data = suite.folder / (name + ".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = dict(data={"packing": case.packing, "shuffle": False, "cache_dir": str(suite.folder)},
                  data__train=[{"path": str(data), "format": "tokens"}],
                  train={"seq_len": case.seq_len, "micro_batch_size": MICRO, "global_batch_size": case.global_batch},
                  optimizer={"lr": case.lr, "weight_decay": DECAY, "max_grad_norm": case.clip, "eps": 1e-4, "betas": [0.9, 0.95]},
                  schedule={"name": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": 0.1})
    ids = torch.randint(0, model.config.vocab_size, (2, case.seq_len), generator=torch.Generator().manual_seed(number))

    # Their adapter, before training.
    loaded = suite.config(name + "-loaded", source, adapter={"plugin": "lora", "path": str(theirs)},
                          train={"seq_len": case.seq_len, "micro_batch_size": 2})
    with torch.no_grad():
        suite.at_most(f"{name} logits of their adapter", error(suite.logits(loaded, ids), adapted.eval()(ids).logits), 1e-5)

    suite.run("train", suite.config(name, source, run={"max_steps": STEPS}, adapter={"plugin": "lora", "path": str(theirs)}, **shared))
    run = suite.folder / (name + "-run")
    trained = adapted.train()
    losses, norms, _ = train(trained, rows, case)
    print(f"     {name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, gradient norms {min(norms):.2f} … {max(norms):.2f}")
    suite.at_most(f"{name} losses", largest_relative([line["loss"] for line in metrics(run)], losses), 2e-6)

    final = load_file(run / "final" / "adapter_model.safetensors")
    state = get_peft_model_state_dict(trained)
    suite.check(f"{name} adapter_model.safetensors has peft's names and shapes", shapes(final) == shapes(state),
                str(sorted(final.keys() ^ state.keys())[:6]))
    both = final.keys() & state.keys()
    suite.at_most(f"{name} adapter weights", max(error(final[key], state[key]) for key in both), 5e-6)
    before = load_file(theirs / "adapter_model.safetensors")
    suite.check(f"{name} every tensor moved", all(not torch.equal(before[key], final[key]) for key in both))

    # Our adapter in peft.
    trained.eval()
    again = PeftModel.from_pretrained(base_of(source), run / "final").eval()
    with torch.no_grad():
        expected = trained(ids).logits
        suite.at_most(f"{name} logits of our adapter in peft", error(again(ids).logits, expected), 2e-5)

    # Merged, by both.
    merged = suite.folder / (name + "-merged")
    suite.run("ckpt", "merge", run, "--out", merged)
    with torch.no_grad():
        suite.at_most(f"{name} logits merged, to peft's merged", error(base_of(merged)(ids).logits,
                                                                       again.merge_and_unload()(ids).logits), 1e-5)

    # The same adapter from options: names and shapes.
    own = suite.config(name + "-own", source, run={"max_steps": WARMUP}, adapter={"plugin": "lora", **case.ours}, **shared)
    suite.run("train", own)
    fresh = load_file(suite.folder / (name + "-own-run") / "final" / "adapter_model.safetensors")
    suite.check(f"{name} options give the same tensors", shapes(fresh) == shapes(state), str(sorted(fresh.keys() ^ state.keys())[:6]))

for number, (name, (config, ours)) in enumerate(OLDER.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=600 + number, **config)
    source = models.save(model, suite.folder / name)
    data = suite.folder / (name + ".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in documents(number, model.config.vocab_size, (3, 130), 70)))
    suite.run("train", suite.config(name, source, run={"max_steps": 5}, adapter={"plugin": "lora", **ours}, optimizer={"lr": 2e-2},
                                    data__train=[{"path": str(data), "format": "tokens"}], data={"cache_dir": str(suite.folder)},
                                    train={"seq_len": 48, "micro_batch_size": 4}))
    run = suite.folder / (name + "-run")
    ids = torch.randint(0, model.config.vocab_size, (2, 48), generator=torch.Generator().manual_seed(number))
    loaded = suite.config(name + "-loaded", source, adapter={"plugin": "lora", "path": str(run / "final")},
                          train={"seq_len": 48, "micro_batch_size": 2})
    ours_logits = suite.logits(loaded, ids)
    with torch.no_grad():
        base = base_of(source)(ids).logits
        again = PeftModel.from_pretrained(base_of(source), run / "final").eval()
        suite.at_most(f"{name} logits of our adapter in peft", error(ours_logits, again(ids).logits), 2e-5)
        suite.check(f"{name} the adapter has an effect", error(ours_logits, base) > 1e-3)
    # peft writes what it has converted: gate and up joined, with twice the rank.
    converted = suite.folder / (name + "-converted")
    again.save_pretrained(converted)
    loaded = suite.config(name + "-converted-loaded", source, adapter={"plugin": "lora", "path": str(converted)},
                          train={"seq_len": 48, "micro_batch_size": 2})
    suite.at_most(f"{name} logits of what peft has converted", error(suite.logits(loaded, ids), ours_logits), 2e-5)
suite.close()
