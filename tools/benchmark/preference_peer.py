"""The peer of tools/bench --preference: TRL's DPOTrainer, one pair a step.

    preference_peer.py FOLDER STEPS THREADS full|lora fp32|bf16 eager|compile|half|half-compile

Trains FOLDER/base on FOLDER/pairs.jsonl and prints a line for each step, and once, as JSON, the bytes of its
parameters, gradients, optimizer states and reference, the tokens of a step and how many of them are answers. In bf16
the parameters of `full` are fp32 under autocast, those of the base of `lora` bf16; with half all are bf16, without
autocast.

Settings are those that are fastest on a CPU: per-token log-probabilities in chunks (TRL 1.16 never builds the logits),
the reference online, sdpa, fused AdamW, neither gradient checkpointing nor logging. Without effect there: padding_free,
which TRL 1.16 turns off by itself, and use_liger_kernel, whose kernels need Triton.
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, LlamaForCausalLM, TrainerCallback

from peer_facts import gradient_bytes, num_bytes, print_facts

folder, steps, threads, mode, dtype, kind = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:7]
torch.set_num_threads(threads)
torch.manual_seed(0)
is_half, is_bf16 = kind.startswith("half"), dtype == "bf16"


def load():
    is_narrow = is_bf16 and (is_half or mode == "lora")
    return LlamaForCausalLM.from_pretrained(f"{folder}/base", dtype=torch.bfloat16 if is_narrow else torch.float32,
                                            attn_implementation="sdpa")


class Watch(TrainerCallback):
    """Counts the bytes of gradients and states while they exist."""
    facts = dict(gradients=0)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.facts["gradients"] = gradient_bytes(model)

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 1:
            print_facts(model, getattr(optimizer, "optimizer", optimizer), **self.facts)
        print(f"STEP {state.global_step}", flush=True)


arguments = trl.DPOConfig(
    output_dir=f"{folder}/trl", use_cpu=True, report_to="none", save_strategy="no",
    bf16=is_bf16 and not is_half, gradient_checkpointing=False, max_length=None, max_steps=steps,
    per_device_train_batch_size=1, train_sampling_strategy="sequential", lr_scheduler_type="constant", learning_rate=1e-5,
    weight_decay=0.1, max_grad_norm=1.0, optim="adamw_torch_fused", logging_strategy="no", disable_tqdm=True,
    precompute_ref_log_probs=False, dataloader_pin_memory=False, torch_compile=kind.endswith("compile"))
lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32,
                  target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
rows = [json.loads(line) for line in open(f"{folder}/pairs.jsonl")]
# The texts get the end of a turn, which joins the last word unless a space stands before it.
rows = [{"prompt": row["prompt"] + " ", **{side: row[side] + " <eos>" for side in ("chosen", "rejected")}} for row in rows]
watch = Watch()
model = load()
if mode == "lora" and is_bf16:
    from peft import get_peft_model
    model = get_peft_model(model, lora, autocast_adapter_dtype=not is_half)
trainer = trl.DPOTrainer(model=model, ref_model=load() if mode == "full" else None, args=arguments,
                         train_dataset=Dataset.from_list(rows), callbacks=[watch],
                         processing_class=AutoTokenizer.from_pretrained(f"{folder}/base"),
                         peft_config=lora if mode == "lora" and not is_bf16 else None)
watch.facts["reference"] = num_bytes(trainer.ref_model.parameters()) if mode == "full" else 0
first = trainer.train_dataset[0]
answers = len(first["chosen_ids"]) + len(first["rejected_ids"])
watch.facts |= dict(answers=answers, tokens=answers + 2 * len(first["prompt_ids"]))
trainer.train()
