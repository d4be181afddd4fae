"""tools/bench --generate: new tokens per second of `chassis generate --prompts`, beside transformers' generate().

The time of the start and of the prompts is left out: two runs differ only in the number of new tokens. Percent of light
is the time of reading every weight of a step once at the speed of a copy, as a share of the time of a token."""
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import light

BATCHES, SHORT, LONG = (1, 8), 16, 144


def write_inputs(folder: Path, python: str, model: dict, threads) -> None:
    """The weights as a directory of transformers, which both read, and prompts of unequal lengths."""
    (folder / "model.json").write_text(json.dumps(model))
    make = (f"import json, torch; from transformers import LlamaConfig, LlamaForCausalLM; torch.manual_seed(0); "
            f"LlamaForCausalLM(LlamaConfig(**json.load(open('{folder}/model.json')))).save_pretrained('{folder}/base')")
    subprocess.run([python, "-c", make], check=True, capture_output=True)
    (folder / "base/generation_config.json").unlink(missing_ok=True)
    text = "In the early days of Unix, programs were small, and each of them did one thing well. "
    with open(folder / "prompts.jsonl", "w") as out:
        for row in range(max(BATCHES)):
            out.write(json.dumps({"prompt": text[:24 + 8 * row]}) + "\n")
    for batch in BATCHES:
        lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)
        (folder / f"prompts-{batch}.jsonl").write_text("".join(lines[:batch]))
    (folder / "generate.toml").write_text(f"""schema_version = 1
[run]
output_dir = "{folder}/run"
{f"threads = {threads}" if threads else ""}
device = "cpu"
[model]
path = "{folder}/base"
[tokenizer]
plugin = "bytes"
""")


def ours(build: str, folder: Path, batch: int, dtype: str, environment: dict) -> dict:
    def run(num_tokens: int) -> tuple:
        out = folder / "answers.jsonl"
        out.unlink(missing_ok=True)
        start = time.perf_counter()
        subprocess.run([f"{build}/bin/chassis", "generate", f"{folder}/generate.toml", "--prompts",
                        f"{folder}/prompts-{batch}.jsonl", "--out", str(out), f"precision.compute={dtype}",
                        f"generate.max_new_tokens={num_tokens}"], check=True, capture_output=True, env=environment)
        seconds = time.perf_counter() - start
        return sum(json.loads(line)["answer_tokens"] for line in out.read_text().splitlines()), seconds

    (few, short), (many, long) = run(SHORT), run(LONG)
    return dict(tokens=many - few, seconds=long - short)


def bench(args, model: dict, own_threads, machine_limits, environment: dict, peer_environments: dict) -> None:
    folder = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    write_inputs(folder, args.python, model, own_threads)
    weights = light.weights(model)
    num_read = weights["linears"] + weights["head"]

    def peer(kind: str, batch: int, dtype: str, variables: dict) -> float:
        words = [args.python, str(Path(__file__).parent / "generate_peer.py"), str(folder), str(batch), str(args.threads), kind,
                 dtype, str(SHORT), str(LONG)]
        done = subprocess.run(words, env=variables, capture_output=True, text=True)
        if done.returncode:
            return 0.0
        found = json.loads(done.stdout.splitlines()[-1])
        return found["tokens"] / found["seconds"]

    print("| dtype, texts at once | chassis, tok/s | best peer | ratio | percent of light |\n|---|---|---|---|---|")
    for dtype in args.dtypes.split(","):
        limits = machine_limits(args, dtype)
        for batch in BATCHES:
            # A peer keeps the wait policy that is best for it.
            chosen = {}
            for kind in ("eager", "compile"):
                rates = {name: peer(kind, batch, dtype, variables) for name, variables in peer_environments.items()}
                best = max(rates, key=rates.get)
                if rates[best] > 0:
                    chosen[kind] = peer_environments[best]
            rates, theirs = [], []
            for _ in range(args.rounds):
                found = ours(args.build, folder, batch, dtype, environment)
                rates.append(found["tokens"] / found["seconds"])
                theirs.append(max(((peer(kind, batch, dtype, variables), kind) for kind, variables in chosen.items()),
                                  default=(float("nan"), "none")))
            rate = statistics.median(rates)
            least = num_read * (2 if dtype == "bf16" else 4) / (limits["copy"] * 1e9)
            ratio = statistics.median(a / b for a, (b, _) in zip(rates, theirs))
            print(f"| {dtype}, {batch} | {rate:.0f} | {theirs[-1][1]} {statistics.median(b for b, _ in theirs):.0f} | "
                  f"{ratio:.2f} x | {100 * least * rate / batch:.0f} % of {limits['copy']:.0f} GB/s |", flush=True)
    shutil.rmtree(folder)
