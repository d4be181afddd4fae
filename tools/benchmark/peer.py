"""The peers of tools/bench and tools/gpu-check, on the same batches and at their best settings: a PyTorch loop over
transformers' model, eager or compiled, HF Trainer, and over gloo (under torchrun) PyTorch's FSDP2, its tensor
parallelism (dtensor) and its pipelining (pipeline, 1F1B), eager or compiled. All use fused AdamW; bf16 is autocast over
fp32 parameters.

    peer.py FOLDER STEPS THREADS eager|compile|trainer|fsdp2|dtensor[-compile]|pipeline[-compile] fp32|bf16
    peer.py FOLDER STEPS THREADS experts-eager|experts-grouped_mm[-compile] fp32|bf16
    peer.py FOLDER STEPS THREADS peft|qlora[-half][-compile] fp32|bf16
    peer.py FOLDER STEPS THREADS eager|compile|peft[-compile]|qlora[-compile] fp32|bf16 cuda

The model is the one that FOLDER/model.json describes; experts-… names its experts_implementation. peft trains LoRA on
all linears of FOLDER/base; qlora does so on a base that bitsandbytes quantizes while it is loaded. In bf16 the base is
bf16 and the adapter fp32 under autocast; with -half the adapter and its AdamW are bf16 too, without autocast. With a
device, weights are random values made there, and the last line is the peak of its allocator.
"""
import contextlib
import json
import os
import sys
import time

import torch
import transformers

from peer_facts import gradient_bytes, print_facts

folder, steps, threads, kind, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
device = sys.argv[6] if len(sys.argv) > 6 else "cpu"
torch.set_num_threads(threads)
torch.manual_seed(0)
config = json.load(open(f"{folder}/model.json"))
Model = getattr(transformers, config["architectures"][0])
has_adapter, is_quantized, is_half = kind.startswith(("peft", "qlora")), kind.startswith("qlora"), "-half" in kind


def made_on_device(dtype_of_weights):
    with torch.device(device):
        made = Model(Model.config_class(**config))
    return made.to(dtype_of_weights)


if has_adapter:
    from peft import LoraConfig, get_peft_model
    half_or_single = torch.bfloat16 if dtype == "bf16" else torch.float32
    quantized = {}
    if is_quantized:
        import bitsandbytes  # noqa: F401: says at once that it is missing
        from transformers import BitsAndBytesConfig
        quantized = dict(device_map=device, quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=half_or_single))
    if device != "cpu" and is_quantized and not os.path.exists(f"{folder}/base"):
        made_on_device(half_or_single).save_pretrained(f"{folder}/base")
    if device == "cpu" or is_quantized:
        base = Model.from_pretrained(f"{folder}/base", dtype=half_or_single, **quantized)
    else:
        base = made_on_device(half_or_single)
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
                           autocast_adapter_dtype=not is_half)
else:
    model = made_on_device(torch.float32)
    if kind.startswith("experts-"):
        model.set_experts_implementation(kind.split("-")[1])
rows = [json.loads(line)["input_ids"] for line in open(f"{folder}/tokens.jsonl")]
batch = json.load(open(f"{folder}/batch.json"))
BATCH, NUM_MICROBATCHES = batch["rows"], batch["num_microbatches"]


def autocast():
    return torch.autocast(device, torch.bfloat16) if dtype == "bf16" and not is_half else contextlib.nullcontext()


def adamw():
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.dim() > 1]
    rest = [p for p in trained if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, fused=True)


def loop(run) -> None:
    optimizer = adamw()
    for step in range(steps):
        share = BATCH // NUM_MICROBATCHES
        for first in range(step * BATCH, (step + 1) * BATCH, share):
            ids = torch.tensor(rows[first:first + share], device=device)
            with autocast():
                loss = run(input_ids=ids, labels=ids).loss / NUM_MICROBATCHES
            loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
        optimizer.step()
        if step == 0:
            print_facts(model, optimizer, gradients=gradient_bytes(model), reference=0, tokens=BATCH * len(rows[0]))
        optimizer.zero_grad(set_to_none=True)
        print(f"STEP {step + 1} {loss.item() * NUM_MICROBATCHES:.4f}", flush=True)
    if device != "cpu":
        print(f"PEAK {torch.cuda.max_memory_allocated()}", flush=True)


def eager() -> None:
    loop(model)


def compiled() -> None:
    loop(torch.compile(model))


def trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class PrintSteps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            print(f"STEP {state.global_step}", flush=True)

    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(output_dir=f"{folder}/trainer", per_device_train_batch_size=BATCH, max_steps=steps,
                                  learning_rate=1e-4, weight_decay=0.1, max_grad_norm=1.0, save_strategy="no",
                                  optim="adamw_torch_fused", bf16=dtype == "bf16",
                                  report_to=[], use_cpu=True, logging_strategy="no", disable_tqdm=True)
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[PrintSteps()]).train()


def leave(dist) -> None:
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a process that destroys its group


def fsdp2() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw()
    share = BATCH // ranks
    for step in range(steps):
        first = step * BATCH + rank * share
        ids = torch.tensor(rows[first:first + share])
        with autocast():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"STEP {step + 1} {mean.item() / ranks:.4f}", flush=True)
    leave(dist)


def dtensor() -> None:
    """Heads, MLPs and the vocabulary are divided; the loss is computed from divided logits."""
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                                   parallelize_module)

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})
    divided = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    optimizer = torch.optim.AdamW([{"params": divided, "weight_decay": 0.1}, {"params": whole, "weight_decay": 0.0}],
                                  lr=1e-4, fused=True)
    run = torch.compile(model) if kind.endswith("-compile") else model

    def clip() -> None:
        """The same as clip_grad_norm_, with one sum over the ranks."""
        own = [p.grad.to_local() for p in divided]
        square = torch.stack(torch._foreach_norm(own)).square().sum()
        dist.all_reduce(square)
        norm = (square + torch.stack(torch._foreach_norm([p.grad for p in whole])).square().sum()).sqrt()
        torch._foreach_mul_(own + [p.grad for p in whole], (1.0 / (norm + 1e-6)).clamp(max=1.0))

    for step in range(steps):
        ids = torch.tensor(rows[step * BATCH:(step + 1) * BATCH])
        labels = F.pad(ids[:, 1:], (0, 1), value=-100)
        with loss_parallel():
            with autocast():
                logits = run(input_ids=ids, use_cache=False).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
            loss.backward()
        clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print(f"STEP {step + 1} {loss.item():.4f}", flush=True)
    leave(dist)


class Stage(torch.nn.Module):
    """The layers [first, last) of the model, with what is before and behind them."""

    def __init__(self, first: int, last: int):
        super().__init__()
        self.embed = model.model.embed_tokens if first == 0 else None
        self.layers = torch.nn.ModuleList(model.model.layers[first:last])
        self.rotary = model.model.rotary_emb
        is_last = last == len(model.model.layers)
        self.norm, self.head = (model.model.norm, model.lm_head) if is_last else (None, None)

    def forward(self, x):
        with autocast():
            h = self.embed(x) if self.embed else x
            positions = torch.arange(h.shape[1]).unsqueeze(0)
            rotary = self.rotary(h, positions)
            for layer in self.layers:
                h = layer(h, position_ids=positions, position_embeddings=rotary, use_cache=False)
                h = h[0] if isinstance(h, tuple) else h
            return self.head(self.norm(h)) if self.head else h


def pipeline() -> None:
    """Two stages of equal cost: the head costs as much as two of the six layers. Micro-batches of one row."""
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, layers = dist.get_rank(), len(model.model.layers)
    assert dist.get_world_size() == 2, "two stages"
    module = Stage(0, 4) if rank == 0 else Stage(4, layers)
    if kind.endswith("-compile"):
        module.compile()
    trained = list(module.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=1e-4, fused=True)

    def loss_of(logits, labels):
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    schedule = Schedule1F1B(PipelineStage(module, rank, 2, torch.device("cpu")), BATCH, loss_fn=loss_of)
    for step in range(steps):
        ids = torch.tensor(rows[step * BATCH:(step + 1) * BATCH])
        losses = []
        if rank == 0:
            schedule.step(ids)
        else:
            schedule.step(target=F.pad(ids[:, 1:], (0, 1), value=-100), losses=losses)
        square = torch.stack(torch._foreach_norm([p.grad for p in trained])).square().sum()
        dist.all_reduce(square)
        torch._foreach_mul_([p.grad for p in trained], (1.0 / (square.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.all_reduce(loss)
        if rank == 0:
            print(f"STEP {step + 1} {loss.item():.4f}", flush=True)
    leave(dist)


print(f"peer {kind} ready at {time.time():.2f}", flush=True)
if has_adapter or kind.startswith("experts-"):
    (compiled if kind.endswith("-compile") else eager)()
else:
    {"eager": eager, "compile": compiled, "trainer": trainer, "fsdp2": fsdp2,
     "dtensor": dtensor, "dtensor-compile": dtensor,
     "pipeline": pipeline, "pipeline-compile": pipeline}[kind]()
