"""tools/bench --moe: two models with experts, of the shapes of Qwen3-MoE and Mixtral, beside transformers at the
fastest of its implementations of experts.

Percent of light counts the experts that are chosen for a token, and the bytes of all. The second table compares the
products of experts with dense ones of equal FLOPs: those of a Llama whose MLP is as wide as all chosen experts
together, by the spans of both in traces of chassis, forward and backward. The rest is in measured.py.
"""
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import light
import measured
import run_inputs

KINDS = ("experts-grouped_mm", "experts-eager", "experts-grouped_mm-compile", "experts-eager-compile")
TRACED = (3, 6)  # the first and the last step of a trace
LINEARS = ("gate_proj", "up_proj")  # the third linear of experts is one with the sum over a token's experts


def models_of(llama: dict) -> dict:
    """By name, with attention and vocabulary of a Llama."""
    return {
        "qwen3_moe": dict(llama, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe",
                          head_dim=llama["hidden_size"] // llama["num_attention_heads"], num_experts=32,
                          num_experts_per_tok=4, moe_intermediate_size=192, norm_topk_prob=True, decoder_sparse_step=1,
                          mlp_only_layers=[]),
        "mixtral": dict(llama, architectures=["MixtralForCausalLM"], model_type="mixtral", num_local_experts=8,
                        num_experts_per_tok=2, intermediate_size=1024)}


def width_of(model: dict) -> int:
    return model.get("moe_intermediate_size", model["intermediate_size"])


def dense_twin(llama: dict, model: dict) -> dict:
    """Its MLP has the FLOPs of the experts that are chosen for a token."""
    return dict(llama, intermediate_size=model["num_experts_per_tok"] * width_of(model))


def product_seconds(trace: Path) -> float:
    """Seconds of a step in the first two products of MLPs or experts, forward and backward."""
    events = json.loads(trace.read_text())["traceEvents"]
    sum_us = 0.0
    for span in (event for event in events if event["ph"] == "X" and "plugin" in event["args"]):
        are_products = [op.split(".")[-1] in LINEARS for op in span["name"].split("+")]
        if any(are_products) and not all(are_products):
            raise SystemExit(f"tools/bench: {trace}: the span {span['name']} has other ops beside products")
        sum_us += span["dur"] if all(are_products) else 0.0
    return sum_us / 1e6 / (TRACED[1] - TRACED[0] + 1)


def bench(args, llama: dict, seq_len: int, rows: int, own_threads, machine_limits, environment: dict,
          environments_of) -> None:
    """`environments_of(threads)`: the environments of a peer, by the name of their wait policy."""
    models = models_of(llama)
    if args.only and args.only not in models:
        raise SystemExit(f"tools/bench: --only {args.only}: the models are {', '.join(models)}")
    names = [args.only] if args.only else list(models)
    folder = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    for name in names:
        for part, model in ((name, models[name]), (f"{name}-dense", dense_twin(llama, models[name]))):
            (folder / part).mkdir()
            run_inputs.write_run(folder / part, model, seq_len, rows, max(args.steps, TRACED[1]) + 1, rows,
                                 threads=own_threads)
    program = str(Path(__file__).parent / "peer.py")

    def command_of(part: str, dtype: str, steps: int) -> list:
        shutil.rmtree(folder / part / "run", ignore_errors=True)
        return [f"{args.build}/bin/chassis", "train", f"{folder}/{part}/bench.toml", f"run.max_steps={steps}",
                f"precision.compute={dtype}", *args.set]

    def case_of(name: str, dtype: str) -> measured.Case:
        def ours() -> dict:
            return measured.run_of_chassis(command_of(name, dtype, args.steps + 1), environment, folder / name / "run")

        def peer(chosen, steps: int) -> dict:
            kind, threads, policy = chosen
            return measured.run([args.python, program, f"{folder}/{name}", str(steps + 1), str(threads), kind, dtype],
                                environments_of(threads)[policy])

        def percent(r: dict, limits: dict) -> float:
            model, weight_bytes = models[name], 2.0 if dtype == "bf16" else 4.0
            return light.percent(light.flops_per_token(model, seq_len) * r["tokens"],
                                 light.bytes_per_step(model, weight_bytes), r["seconds"], limits["product"] * 1e9,
                                 limits["copy"] * 1e9)

        return measured.Case(f"{name}, {dtype}", "transformers", KINDS, seq_len * rows, ours, peer, percent)

    def traced(part: str, dtype: str) -> float:
        command = [*command_of(part, dtype, TRACED[1]), f"log.trace=[{TRACED[0]}, {TRACED[1]}]"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"tools/bench: {command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
        return product_seconds(folder / part / "run/trace/rank-0.json")

    table, products = [], []
    for name in names:
        for dtype in args.dtypes.split(","):
            table.append(measured.measure(args, case_of(name, dtype), environments_of(args.threads),
                                          machine_limits(args, dtype)))
            pairs = []
            for number in range(args.rounds):
                pairs.append((traced(name, dtype), traced(f"{name}-dense", dtype)))
                print(f"{name}, {dtype} round {number + 1} products of experts {1000 * pairs[-1][0]:.0f} ms, dense "
                      f"{1000 * pairs[-1][1]:.0f} ms", flush=True)
            products.append((name, dtype, pairs))
    shape = f"{llama['num_hidden_layers']} layers x {llama['hidden_size']}, vocabulary {llama['vocab_size']}"
    measured.print_table(
        f"{shape}, {rows} x {seq_len} tokens, {args.threads} threads, medians of {args.rounds} rounds; MiB above "
        f"parameters, gradients and states", "transformers", table)
    print("\n| gate and up products of a step, forward and backward | rows an expert | experts, ms | dense of equal FLOPs, ms | "
          "dense / experts |\n|---|---|---|---|---|")
    for name, dtype, pairs in products:
        model = models[name]
        each = rows * seq_len * model["num_experts_per_tok"] // light.num_experts(model)
        ours, dense = (1000 * statistics.median(column) for column in zip(*pairs))
        print(f"| {name}, {dtype}: {light.num_experts(model)} experts of width {width_of(model)}, "
              f"{model['num_experts_per_tok']} for a token | {each} | {ours:.0f} | {dense:.0f} | "
              f"{statistics.median(b / a for a, b in pairs):.2f} x |")
    shutil.rmtree(folder)
