"""LoRA on experts beside peft, from an adapter whose A and B are not zero: A and B may change places in files. Files also
have the form of transformers 4."""

import torch
from peft import PeftModel

import models
from adapters import Case, compare, load, random_ids, write_documents
from suite import Suite, error

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BOTH = ["experts.gate_up_proj", "experts.down_proj"]

CASES = {
    "mixtral": Case(dict(family="mixtral"), dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH),
                    dict(rank=4, alpha=8.0, target_parameters=BOTH)),
    "mixtral_down": Case(dict(family="mixtral", num_local_experts=3),
                         dict(r=3, lora_alpha=9, target_modules=[], target_parameters=["mlp.experts.down_proj"], use_rslora=True),
                         dict(rank=3, alpha=9.0, targets=[], target_parameters=["mlp.experts.down_proj"], use_rslora=True), clip=0.65),
    "qwen2_moe": Case(dict(family="qwen2_moe"),
                      dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH,
                           rank_pattern={r"experts\.gate_up_proj": 6}, alpha_pattern={r"layers\.1\.mlp\.experts\.down_proj": 3}),
                      dict(rank=4, alpha=8.0, targets=ATTENTION, target_parameters=BOTH, rank_pattern={r"experts\.gate_up_proj": 6},
                           alpha_pattern={r"layers\.1\.mlp\.experts\.down_proj": 3.0}), clip=0.72),
    # In and out are equal, so only peft_version tells them apart.
    "qwen3_moe_square": Case(dict(family="qwen3_moe", moe_intermediate_size=32), dict(r=4, lora_alpha=8, target_modules=["q_proj"], target_parameters=BOTH),
                             dict(rank=4, alpha=8.0, targets=["q_proj"], target_parameters=BOTH), clip=0.27),
    "llama4": Case(dict(family="llama4_text"), dict(r=4, lora_alpha=8, target_modules=ATTENTION, target_parameters=BOTH),
                   dict(rank=4, alpha=8.0, targets=ATTENTION, target_parameters=BOTH), clip=0.88),
}
# Targets of transformers 4: peft converts them, and joins gate and up with twice the rank.
OLDER = {
    "mixtral_older": (dict(family="mixtral"), dict(rank=3, alpha=6.0, targets=["q_proj", "w1", "w2", "w3"])),
    "qwen3_moe_older": (dict(family="qwen3_moe"), dict(rank=2, alpha=8.0, targets=["gate_proj", "up_proj", "down_proj"])),
}

suite = Suite(__doc__)
for number, (name, case) in enumerate(CASES.items()):
    if suite.args.only in name:
        compare(suite, name, case, number, first_seed=500, filled="lora_", weights_limit=5e-6)

for number, (name, (config, ours)) in enumerate(OLDER.items()):
    if suite.args.only not in name:
        continue
    model = models.make(seed=600 + number, **config)
    source = models.save(model, suite.folder / name)
    _, data = write_documents(suite, name, number, model.config.vocab_size, (3, 130))
    suite.run("train", suite.config(name, source, run={"max_steps": 5}, adapter={"plugin": "lora", **ours}, optimizer={"lr": 2e-2},
                                    data__train=data, data={"cache_dir": str(suite.folder)},
                                    train={"seq_len": 48, "micro_batch_size": 4}))
    run = suite.folder / (name + "-run")
    ids = random_ids(number, model.config.vocab_size, 48)
    loaded = suite.config(name + "-loaded", source, adapter={"plugin": "lora", "path": str(run / "final")},
                          train={"seq_len": 48, "micro_batch_size": 2})
    ours_logits = suite.logits(loaded, ids)
    with torch.no_grad():
        base = load(source).eval()(ids).logits
        again = PeftModel.from_pretrained(load(source), run / "final").eval()
        suite.at_most(f"{name} logits of our adapter in peft", error(ours_logits, again(ids).logits), 2e-5)
        suite.check(f"{name} the adapter has an effect", error(ours_logits, base) > 1e-3)
    # peft writes what it has converted: gate and up joined, with twice the rank.
    converted = suite.folder / (name + "-converted")
    again.save_pretrained(converted)
    loaded = suite.config(name + "-converted-loaded", source, adapter={"plugin": "lora", "path": str(converted)},
                          train={"seq_len": 48, "micro_batch_size": 2})
    suite.at_most(f"{name} logits of what peft has converted", error(suite.logits(loaded, ids), ours_logits), 2e-5)
suite.close()
