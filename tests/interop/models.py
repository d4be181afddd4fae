"""Tiny Llama models with random weights, as transformers saves them."""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", rope_theta=5000.0, factor=4.0)


def make(seed=0, rope=None, **changes):
    """Weights are large enough that every part of the model affects the logits; norms and biases are random too."""
    keys = dict(vocab_size=131, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.1, rms_norm_eps=1e-5,
                attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    keys.update(changes)
    config = LlamaConfig(**keys, **({"rope_parameters": rope} if rope else {}))
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.2 * noise)
    return model


def save(model, folder, old_spelling=False, **options):
    """`old_spelling` writes config.json as transformers 4 does."""
    model.save_pretrained(folder, **options)
    if old_spelling:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        key = "type" if kind == "linear" else "rope_type"
        config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
        config["torch_dtype"] = config.pop("dtype", "float32")
        path.write_text(json.dumps(config, indent=2))
    return folder


# Name → (changes of the configuration, how it is saved). transformers also refuses an odd head_dim; 10, 20
# and 36 are neither powers of two nor multiples of 8.
SHARDED = dict(max_shard_size="60KB")
CASES = {
    "mha": (dict(num_key_value_heads=4), {}),
    "gqa": (dict(num_attention_heads=8, num_key_value_heads=2), {}),
    "mqa": (dict(num_key_value_heads=1), {}),
    "tied": (dict(tie_word_embeddings=True), {}),
    "attention_bias": (dict(attention_bias=True), {}),
    "mlp_bias": (dict(mlp_bias=True), {}),
    "head_dim_10": (dict(head_dim=10, hidden_size=48, num_attention_heads=6, num_key_value_heads=3), {}),
    "head_dim_20": (dict(head_dim=20), {}),
    "head_dim_36": (dict(head_dim=36, hidden_size=45, intermediate_size=77, num_attention_heads=5, num_key_value_heads=1), {}),
    "head_dim_wide": (dict(head_dim=40, num_attention_heads=3, num_key_value_heads=1, hidden_size=72), {}),
    "rope_theta": (dict(rope=dict(rope_type="default", rope_theta=500000.0)), {}),
    "rope_linear": (dict(rope=LINEAR), {}),
    "rope_llama3": (dict(rope=LLAMA3), {}),
    "rope_default_v4": (dict(rope=dict(rope_type="default", rope_theta=1000.0)), dict(old_spelling=True)),
    "rope_linear_v4": (dict(rope=LINEAR), dict(old_spelling=True)),
    "rope_llama3_v4": (dict(rope=LLAMA3), dict(old_spelling=True)),
    "gelu": (dict(hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-6), {}),
    "sharded": (dict(), SHARDED),
    "sharded_tied": (dict(tie_word_embeddings=True), SHARDED),
    "everything": (dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=20, rope=LLAMA3,
                        hidden_size=72, num_attention_heads=6, num_hidden_layers=5), SHARDED),
}
