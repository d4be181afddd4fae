"""tools/bench --preference: DPO of a Llama, all of it or an adapter, beside TRL's DPOTrainer.

A step has one pair, whose two answers have 512 tokens with their prompt. tokens/s are those of prompts and answers.
Percent of light counts the reference's forward, and the head for answers only. The rest is in measured.py.
"""
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import light
import measured

PROMPT, LENGTH, RANK = 128, 512, 16
MODES = ("lora", "full")


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


def bench(args, model: dict, own_threads, machine_limits, environment: dict, environments_of) -> None:
    """`environments_of(threads)`: the environments of a peer, by the name of their wait policy."""
    model = dict(model, max_position_embeddings=2 * LENGTH)
    folder = Path(tempfile.mkdtemp(prefix="chassis-bench-"))
    write_inputs(folder, args.python, model, args.steps, own_threads)
    program = str(Path(__file__).parent / "preference_peer.py")

    def case_of(mode: str, dtype: str) -> measured.Case:
        def ours() -> dict:
            shutil.rmtree(folder / "run", ignore_errors=True)
            command = [f"{args.build}/bin/chassis", "train", f"{folder}/{mode}.toml", f"run.max_steps={args.steps + 1}",
                       f"precision.compute={dtype}", *args.set]
            return measured.run_of_chassis(command, environment, folder / "run")

        def peer(chosen, steps: int) -> dict:
            kind, threads, policy = chosen
            return measured.run([args.python, program, str(folder), str(steps + 1), str(threads), mode, dtype, kind],
                                environments_of(threads)[policy])

        halves = ("half", "half-compile") if dtype == "bf16" else ()
        return measured.Case(f"{mode}, {dtype}", "TRL", ("eager", "compile", *halves), 2 * LENGTH, ours, peer,
                             lambda r, limits: percent_of_light(model, mode, dtype, r, limits), ("tokens", "answers"))

    rows = [measured.measure(args, case_of(mode, dtype), environments_of(args.threads), machine_limits(args, dtype))
            for mode in MODES for dtype in args.dtypes.split(",")]
    measured.print_table(
        f"DPO of {model['num_hidden_layers']} layers x {model['hidden_size']}, vocabulary {model['vocab_size']}, pairs "
        f"of 2 x {LENGTH} tokens, {args.threads} threads, medians of {args.rounds} rounds; MiB above parameters, "
        f"gradients, states and reference", "TRL", rows)
    shutil.rmtree(folder)


def percent_of_light(model: dict, mode: str, dtype: str, r: dict, limits: dict) -> float:
    rank = RANK if mode == "lora" else 0
    return light.percent(light.preference_flops(model, r["tokens"], LENGTH, r["answers"], rank),
                         light.preference_bytes(model, 2.0 if dtype == "bf16" else 4.0, rank), r["seconds"],
                         limits["product"] * 1e9, limits["copy"] * 1e9)
