"""tools/bench --preference: DPO of a Llama, all of it or an adapter, beside TRL's DPOTrainer.

A step has one pair, whose two answers have 512 tokens with their prompt. tokens/s are those of prompts and answers, from
the ends of steps behind the first. Memory is the largest resident set while steps run, counted anew from the end of
the first one, since loading may need more; "above" is without parameters, gradients, optimizer states and the
reference, which the method needs. Percent of light counts the reference's forward, and the head for answers only.
"""
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import light

PROMPT, LENGTH, RANK = 128, 512, 16
MODES = ("lora", "full")


class Failure(Exception):
    pass


def write_inputs(folder: Path, python: str, model: dict, steps: int, threads) -> None:
    """The base as a directory of transformers with a word for each id, pairs, and a configuration for each mode."""
    (folder / "model.json").write_text(json.dumps(model))
    make = f"""
import json, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
config = json.load(open("{folder}/model.json"))
LlamaForCausalLM(LlamaConfig(**config)).save_pretrained("{folder}/base")
vocab = {{"<pad>": 0, "<eos>": 1, "<unk>": 2, **{{f"w{{i}}": i for i in range(3, config["vocab_size"])}}}}
tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>",
                        unk_token="<unk>").save_pretrained("{folder}/base")
"""
    subprocess.run([python, "-c", make], check=True, capture_output=True)
    (folder / "base/generation_config.json").unlink(missing_ok=True)
    state = 12345

    def words(count: int) -> str:
        nonlocal state
        found = []
        for _ in range(count):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            found.append(f"w{3 + (state >> 33) % (model['vocab_size'] - 3)}")
        return " ".join(found)

    with open(folder / "pairs.jsonl", "w") as out:
        for _ in range(steps + 2):
            out.write(json.dumps({"prompt": words(PROMPT), "chosen": words(LENGTH - PROMPT - 1),
                                  "rejected": words(LENGTH - PROMPT - 1)}) + "\n")
    for mode in MODES:
        (folder / f"{mode}.toml").write_text(f"""schema_version = 1
[run]
output_dir = "{folder}/run"
{f"threads = {threads}" if threads else ""}
device = "cpu"
[model]
path = "{folder}/base"
[tokenizer]
plugin = "hf"
{f'[adapter]{chr(10)}plugin = "lora"{chr(10)}rank = {RANK}' if mode == "lora" else ""}
[data]
template = "plain"
shuffle = false
cache_dir = "{folder}/cache"
[[data.train]]
path = "{folder}/pairs.jsonl"
format = "preference"
[train]
task = "preference"
seq_len = {2 * LENGTH}
micro_batch_size = 1
global_batch_size = 1
[objective]
plugin = "dpo"
[optimizer]
plugin = "adamw"
lr = 1e-5
weight_decay = 0.1
[checkpoint]
every_steps = 0
[export]
when = "never"
""")


def peak_of(pid: int) -> int:
    """The largest resident set of a process, in bytes; 0 if it has ended."""
    try:
        found = re.search(r"VmHWM:\s*([0-9]+)", Path(f"/proc/{pid}/status").read_text())
    except (OSError, ProcessLookupError):
        return 0
    return int(found.group(1)) << 10 if found else 0


def forget_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:  # not permitted: the peak is that of the whole process
        pass


def run(command, environment: dict) -> dict:
    """Seconds of a step, and peaks: `peak` while steps run, `whole` of the process."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ends, tail, facts, peak, whole = [], [], {}, 0, 0
    for line in process.stdout:
        tail = (tail + [line])[-20:]
        if line.startswith("FACTS "):
            facts = json.loads(line[6:])
        if not re.match(r"(?:STEP|step) +[0-9]+", line):
            continue
        ends.append(time.time())
        if len(ends) == 1:
            whole = peak_of(process.pid)
            forget_peak(process.pid)
        else:
            peak = max(peak, peak_of(process.pid))
    if process.wait() or len(ends) < 3 or peak == 0:
        raise Failure(f"{command[0]} failed with {process.returncode}:\n{''.join(tail)}")
    return dict(seconds=(ends[-1] - ends[0]) / (len(ends) - 1), peak=peak, whole=max(whole, peak), **facts)


def facts_of(run_directory: Path) -> dict:
    """Those that the peer prints, from the last step of metrics.jsonl, which counts the reference as parameters."""
    line = json.loads((run_directory / "metrics.jsonl").read_text().splitlines()[-1])
    return dict(tokens=line["tokens"], answers=line["trained_tokens"], reference=0,
                **{name: line[f"memory/{name}_bytes"] for name in ("parameters", "gradients", "optimizer")})


def bench(args, model: dict, own_threads, machine_limits, environment: dict, environments_of) -> None:
    """`environments_of(threads)`: the environments of a peer, by the name of their wait policy."""
    model = dict(model, max_position_embeddings=2 * LENGTH)
    folder = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    write_inputs(folder, args.python, model, args.steps, own_threads)
    program = str(Path(__file__).parent / "preference_peer.py")
    trial = min(args.steps, 4)

    def ours(mode: str, dtype: str) -> dict:
        shutil.rmtree(folder / "run", ignore_errors=True)
        command = [f"{args.build}/bin/chassis", "train", f"{folder}/{mode}.toml", f"run.max_steps={args.steps + 1}",
                   f"precision.compute={dtype}", *args.set]
        try:
            return run(command, environment) | facts_of(folder / "run")
        except Failure as failure:
            raise SystemExit(f"tools/bench: {failure}")

    def peer(mode: str, dtype: str, chosen, steps: int) -> dict:
        kind, threads, policy = chosen
        return run([args.python, program, str(folder), str(steps + 1), str(threads), mode, dtype, kind],
                   environments_of(threads)[policy])

    def best_peer(mode: str, dtype: str):
        """(kind, threads, wait policy): first the policy and the number of threads are chosen, then the kind."""
        rates = {}

        def attempt(chosen) -> None:
            try:
                rates[chosen] = 1 / peer(mode, dtype, chosen, trial)["seconds"]
                print(f"{mode} {dtype} TRL {chosen[0]}, {chosen[1]} threads, waits by {chosen[2]}: "
                      f"{2 * LENGTH * rates[chosen]:.0f} tok/s", flush=True)
            except Failure as failure:
                print(f"{failure}\n{mode} {dtype} TRL {chosen[0]} is left out", flush=True)

        for policy in environments_of(args.threads):
            attempt(("eager", args.threads, policy))
        if not rates:
            return None
        policy = max(rates, key=rates.get)[2]
        if args.threads > 1:
            attempt(("eager", args.threads // 2, policy))
        threads, policy = max(rates, key=rates.get)[1:]
        for kind in ("compile", *(("half", "half-compile") if dtype == "bf16" else ())):
            attempt((kind, threads, policy))
        return max(rates, key=rates.get)

    rows = []
    for mode in MODES:
        for dtype in args.dtypes.split(","):
            chosen = best_peer(mode, dtype)
            rounds = []
            for number in range(args.rounds):
                rounds.append((ours(mode, dtype), peer(mode, dtype, chosen, args.steps) if chosen else None))
                print(f"{mode} {dtype} round {number + 1} " + ", ".join(
                    f"{name} {r['tokens'] / r['seconds']:.0f} tok/s, {above(r) / 2**20:.0f} of {r['peak'] / 2**20:.0f} MiB"
                    for name, r in zip(("chassis", "TRL"), rounds[-1]) if r), flush=True)
            rows.append(row_of(mode, dtype, model, rounds, chosen, machine_limits(args, dtype)))
    print_table(args, model, rows)
    shutil.rmtree(folder)


def above(r: dict) -> float:
    """Bytes of the peak without those that the method needs."""
    return r["peak"] - sum(r[name] for name in ("parameters", "gradients", "optimizer", "reference"))


def row_of(mode: str, dtype: str, model: dict, rounds: list, chosen, limits: dict) -> dict:
    middle = lambda of: statistics.median(of(a) for a, _ in rounds)
    theirs = lambda of: statistics.median(of(b) for _, b in rounds) if chosen else float("nan")
    ratio = lambda of: statistics.median(of(a) / of(b) for a, b in rounds) if chosen else float("nan")
    rate = lambda r: r["tokens"] / r["seconds"]
    ours, rank = rounds[0][0], RANK if mode == "lora" else 0
    if chosen and {name: ours[name] for name in ("tokens", "answers")} != {name: rounds[0][1][name] for name in ("tokens", "answers")}:
        raise SystemExit(f"tools/bench: a step of chassis has {ours['tokens']} tokens, {ours['answers']} of them in answers; that "
                         f"of TRL {rounds[0][1]['tokens']} and {rounds[0][1]['answers']}")
    weight_bytes = 2.0 if dtype == "bf16" else 4.0
    of_light = light.percent(light.preference_flops(model, ours["tokens"], LENGTH, ours["answers"], rank),
                             light.preference_bytes(model, weight_bytes, rank), middle(lambda r: r["seconds"]),
                             limits["product"] * 1e9, limits["copy"] * 1e9)
    return dict(name=f"{mode}, {dtype}", ours=middle(rate), theirs=theirs(rate), ratio=ratio(rate), light=of_light,
                product=limits["product"], settings=f"{chosen[0]}, {chosen[1]} threads, {chosen[2]}" if chosen else "none",
                above=middle(above), above_theirs=theirs(above), above_ratio=ratio(above),
                peak=middle(lambda r: r["peak"]), peak_theirs=theirs(lambda r: r["peak"]), peak_ratio=ratio(lambda r: r["peak"]),
                whole_ratio=ratio(lambda r: r["whole"]))


def print_table(args, model: dict, rows: list) -> None:
    print(f"\nDPO of {model['num_hidden_layers']} layers x {model['hidden_size']}, vocabulary {model['vocab_size']}, pairs of 2 x "
          f"{LENGTH} tokens, {args.threads} threads, medians of {args.rounds} rounds; MiB above parameters, gradients, states and "
          f"reference\n")
    print("| | chassis, tok/s | TRL, tok/s | ratio | percent of light | MiB above: chassis | TRL | ratio | peak of steps, MiB: "
          "chassis | TRL | ratio | peak with loading, ratio |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    mib = lambda value: f"{value / 2**20:.0f}"
    for row in rows:
        print(f"| {row['name']} | {row['ours']:.0f} | {row['theirs']:.0f} ({row['settings']}) | {row['ratio']:.2f} x | "
              f"{row['light']:.0f} % of {row['product']:.0f} GFLOP/s | {mib(row['above'])} | {mib(row['above_theirs'])} | "
              f"{row['above_ratio']:.2f} x | {mib(row['peak'])} | {mib(row['peak_theirs'])} | {row['peak_ratio']:.2f} x | "
              f"{row['whole_ratio']:.2f} x |")
