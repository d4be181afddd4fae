"""LoRA beside peft, from an adapter whose B is not zero."""

from adapters import Case, compare
from suite import Suite

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

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
    "llama_head": Case({}, dict(r=4, lora_alpha=8, target_modules=["q_proj", "lm_head"]),
                       dict(rank=4, alpha=8.0, targets=["q_proj", "lm_head"]), clip=0.34),
}

suite = Suite(__doc__)
for number, (name, case) in enumerate(CASES.items()):
    if suite.args.only in name:
        compare(suite, name, case, number, first_seed=300, filled="lora_B", weights_limit=2e-6, max_shard_size="100KB")
suite.close()
