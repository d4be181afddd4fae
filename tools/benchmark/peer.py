"""The peers of tools/bench: a plain eager PyTorch loop over transformers' Llama, and HF Trainer, on the same batches."""
import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

folder, steps, threads, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
torch.manual_seed(0)
config = json.load(open(f"{folder}/model.json"))
model = LlamaForCausalLM(LlamaConfig(**config))
rows = [json.loads(line)["input_ids"] for line in open(f"{folder}/tokens.jsonl")]
BATCH = 4


def eager() -> None:
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-4)
    for step in range(steps):
        ids = torch.tensor(rows[step * BATCH:(step + 1) * BATCH])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"STEP {step + 1} {loss.item():.4f}", flush=True)


def trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Said(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"STEP {state.global_step}", flush=True)

    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(output_dir=f"{folder}/trainer", per_device_train_batch_size=BATCH, max_steps=steps,
                                  learning_rate=1e-4, weight_decay=0.1, max_grad_norm=1.0, save_strategy="no",
                                  report_to=[], use_cpu=True, logging_strategy="no", disable_tqdm=True)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Said()]).train()


print(f"peer {kind} ready at {time.time():.2f}", flush=True)
eager() if kind == "eager" else trainer()
