"""4-bit weights beside bitsandbytes: codes, scales and values bit for bit, quant_state byte for byte, and QLoRA beside peft
on a model that both quantize from one file."""

import json
import os
import pathlib
import signal
import subprocess

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling for every size takes minutes
import bitsandbytes.functional as bnb
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import models
from loop import DECAY, MICRO, STEPS, WARMUP, documents, train
from suite import Suite, error, metrics

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BLOCKS = [32, 64, 128, 256, 512, 1024, 2048, 4096]
SIZES = [1, 2, 63, 64, 65, 4096, 1000001]


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def codes_program(*arguments, data=b"", expect=0):
    program = pathlib.Path(suite.args.dump_logits).parent / "bnb4_codes"
    done = subprocess.run([program, *map(str, arguments)], input=data, capture_output=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stderr.decode())
    return done.stdout


def quantize(code, block, dtype, values):
    out = codes_program("quantize", code, block, dtype, data=raw(values))
    split = (values.numel() + 1) // 2
    return np.frombuffer(out[:split], np.uint8), np.frombuffer(out[split:], np.float32)


def dequantize(code, block, dtype, n, codes, absmax):
    out = codes_program("dequantize", code, block, dtype, n, data=codes.tobytes() + absmax.tobytes())
    return torch.frombuffer(bytearray(out), dtype=DTYPES[dtype])


def scaled(values, block):
    blocks = torch.nn.functional.pad(values.float(), (0, -values.numel() % block)).view(-1, block)
    return (blocks / blocks.abs().amax(1, keepdim=True).clamp(min=1e-38)).view(-1)[: values.numel()]


def unpacked(codes, n):
    return np.stack([codes >> 4, codes & 15], 1).reshape(-1)[:n]


def rows(n, dtype, block):
    generator = torch.Generator().manual_seed(n + block)
    normal = torch.randn(n, generator=generator)
    yield "normal", normal
    if n == 4096:
        thresholds = bnb.get_4bit_type("nf4", device="cpu")
        thresholds = (thresholds[1:] + thresholds[:-1]) / 2
        near = torch.cat([thresholds, torch.nextafter(thresholds, torch.tensor(2.0)), torch.nextafter(thresholds, torch.tensor(-2.0))])
        edges = torch.zeros(n)
        edges[::32] = 1.0
        for begin in range(0, n, 32):
            take = near.roll(begin // 32 * 7)[:31]
            edges[begin + 1 : begin + 32] = take
        yield "thresholds", edges
        yield "zeros", torch.zeros(n)
        yield "a zero block", torch.cat([torch.zeros(n // 2), normal[n // 2 :]])
        if dtype == "f32":
            yield "subnormal scales", normal * 1e-40
            yield "tiny scales", normal * 1e-37


def check_codes():
    differing = 0
    for dtype, torch_dtype in DTYPES.items():
        for block in BLOCKS:
            for n in SIZES:
                for what, values in rows(n, dtype, block):
                    values = values.to(torch_dtype)
                    theirs, state = bnb.quantize_4bit(values, blocksize=block, quant_type="nf4")
                    ours, absmax = quantize("nf4", block, dtype, values)
                    name = f"nf4 {what} {n} in blocks of {block}, {dtype}"
                    same = np.array_equal(ours, theirs.view(-1).numpy()) and np.array_equal(absmax, state.absmax.numpy())
                    if not same and n % block != 0:
                        # On the CPU bitsandbytes scales a partial block by a division: values within an ulp of a
                        # threshold may differ, and the scale of a partial block of zeros is 1e-38.
                        tail = n - n % block
                        head_same = np.array_equal(ours[: tail // 2], theirs.view(-1).numpy()[: tail // 2]) and np.array_equal(absmax[:-1], state.absmax.numpy()[:-1])
                        same = head_same and np.count_nonzero(unpacked(ours, n) != unpacked(theirs.view(-1).numpy(), n)) <= 1
                        differing += same
                    suite.check(name, same) if not same else passed.append(name)
                    for out in DTYPES:
                        got = dequantize("nf4", block, out, n, ours, absmax)
                        of_ours = bnb.QuantState(torch.from_numpy(absmax.copy()), shape=torch.Size([n]), code=state.code, blocksize=block,
                                                 quant_type="nf4", dtype=DTYPES[out])
                        want = bnb.dequantize_4bit(torch.from_numpy(ours.copy()).view(-1, 1), quant_state=of_ours).view(-1)
                        holds = bool((got == want).all())  # +0 equals -0
                        suite.check(f"{name} values in {out}", holds) if not holds else passed.append(name)
    suite.check("nf4 codes, scales and values", True, f"{len(passed)} rows; {differing} partial blocks within an ulp of a threshold")


def check_fp4():
    """Codes differ from the CPU's only within 14 ulp of a threshold; values of equal codes are equal."""
    for block in (64, 256):
        values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(block))
        theirs, state = bnb.quantize_4bit(values, blocksize=block, quant_type="fp4")
        ours, absmax = quantize("fp4", block, "f32", values)
        suite.check(f"fp4 scales in blocks of {block}", np.array_equal(absmax, state.absmax.numpy()))
        a = dequantize("fp4", block, "f32", values.numel(), ours, absmax)
        b = bnb.dequantize_4bit(theirs, quant_state=state).view(-1)
        differs = (a != b).nonzero().view(-1)
        thresholds = torch.tensor([0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333])
        magnitude = scaled(values, block)[differs].abs()
        near = (magnitude[:, None] - thresholds).abs().amin(1) <= 20 * 2**-24 if len(differs) else torch.ones(0, dtype=torch.bool)
        suite.check(f"fp4 codes in blocks of {block}", bool(near.all()), f"{len(differs)} of {values.numel()} differ")


def check_nested():
    """bitsandbytes' CPU code of scales is a table lookup, which is not the nearest: values are compared."""
    absmax = torch.rand(100001, generator=torch.Generator().manual_seed(1)) * 2 + 0.5
    out = codes_program("nest", data=raw(absmax))
    blocks = (absmax.numel() + 255) // 256
    offset, nested = np.frombuffer(out[:4], np.float32)[0], np.frombuffer(out[4 : 4 + 4 * blocks], np.float32)
    codes = np.frombuffer(out[4 + 4 * blocks :], np.uint8)
    ulp = np.spacing(np.float32(absmax.mean().item()))
    suite.check("nested offset", abs(float(offset) - absmax.mean().item()) <= ulp)
    code = bnb.create_dynamic_map()
    z = absmax - float(offset)
    theirs, state = bnb.quantize_blockwise(z, code=code, blocksize=256)
    suite.check("nested scales", np.array_equal(nested, state.absmax.numpy()))
    restored = bnb.dequantize_blockwise(torch.from_numpy(codes.copy()), absmax=torch.from_numpy(nested.copy()), code=code, blocksize=256)
    ours, theirs_error = (restored - z).abs(), (bnb.dequantize_blockwise(theirs, state) - z).abs()
    suite.check("nested codes are nearest", bool((ours <= theirs_error + 1e-7).all()), f"mean error {ours.mean():.2e}, theirs {theirs_error.mean():.2e}")


def check_states():
    for nested in (False, True):
        for dtype in DTYPES.values():
            for code in ("nf4", "fp4"):
                values = torch.randn(48, 96, generator=torch.Generator().manual_seed(3)).to(dtype)
                _, state = bnb.quantize_4bit(values, blocksize=64, quant_type=code, compress_statistics=nested)
                key = f"quant_state.bitsandbytes__{code}"
                text = state.as_dict(packed=True)[key].numpy().tobytes()
                suite.check(f"quant_state {code} {dtype} nested={nested}", codes_program("state", data=text) == text, text.decode())
    codes_program("state", data=b'{"quant_type": "nf4"}', expect=1)


class Loop:
    packing, seq_len, global_batch, clip, lr = "concat_split", 48, 8, 1.05, 2e-3

    @staticmethod
    def make_optimizer(groups):
        return torch.optim.AdamW(groups, lr=2e-3, eps=1e-4, betas=(0.9, 0.95))


LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def check_qlora():
    """The first case is quantized by both sides from one file, the others load the file that transformers saved. Rows are
    whole blocks: on the CPU, bitsandbytes 0.50 restores rows of 48 in blocks of 64 with the scales of other blocks."""
    for name, changes, four_bits, ours in (
        ("nf4", {}, dict(bnb_4bit_quant_type="nf4"), dict(type="nf4")),
        ("nf4 double", dict(intermediate_size=192), dict(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True), {}),
        ("fp4 qwen2", dict(family="qwen2"), dict(bnb_4bit_quant_type="fp4"), {}),
        ("nf4 skip", {}, dict(bnb_4bit_quant_type="nf4", llm_int8_skip_modules=["down_proj", "lm_head"]), {}),
    ):
        label = name.replace(" ", "_")
        model = models.make(**{**dict(hidden_size=64, intermediate_size=128), **changes})
        source = models.save(model, suite.folder / label)
        data = suite.folder / (label + ".jsonl")
        texts = documents(7, 131, (3, 130), 40)
        data.write_text("".join(json.dumps(row) + "\n" for row in texts))
        stored = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, device_map="cpu", attn_implementation="eager", quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32, **four_bits))
        files = suite.folder / (label + "-4bit")
        stored.save_pretrained(files)
        again = suite.folder / (label + "-again")
        suite.run("ckpt", "export", files, again)
        before, after = (load_file(path / "model.safetensors") for path in (files, again))
        differ = [key for key in before.keys() | after.keys() if key not in before or key not in after or raw(before[key]) != raw(after[key])]
        suite.check(f"qlora {name}: {len(before)} tensors read and written again", not differ, str(differ[:4]))
        peft = get_peft_model(stored, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=LINEAR))
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for _, parameter in peft.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        theirs = suite.folder / (label + "-peft")
        peft.save_pretrained(theirs)
        config = suite.config(label + "-ours", source if ours else files, run={"max_steps": STEPS}, quant={"plugin": "bnb4", **ours},
                              adapter={"plugin": "lora", "path": str(theirs)},
                              data={"packing": Loop.packing, "shuffle": False, "cache_dir": str(suite.folder)},
                              data__train=[{"path": str(data), "format": "tokens"}],
                              train={"seq_len": Loop.seq_len, "micro_batch_size": MICRO, "global_batch_size": Loop.global_batch},
                              optimizer={"plugin": "adamw", "lr": 2e-3, "eps": 1e-4, "betas": [0.9, 0.95], "weight_decay": DECAY, "max_grad_norm": Loop.clip},
                              schedule={"name": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": 0.1})
        ids = torch.randint(0, 131, (2, 48), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            # In training mode the CPU's kernel in bfloat16 is not used.
            suite.at_most(f"qlora {name} logits before", error(suite.logits(config, ids), peft.train()(ids).logits), 1e-5)
        suite.run("train", config)
        losses, norms, counts = train(peft.train(), texts, Loop)
        run = suite.folder / (label + "-ours-run")
        lines = [step["loss"] for step in metrics(run)]
        worst = max(abs(a - b) / abs(b) for a, b in zip(lines, losses))
        suite.at_most(f"qlora {name} losses", worst, 2e-6, f"{losses[0]:.4f} … {losses[-1]:.4f}, {len(lines)} steps")
        state = get_peft_model_state_dict(peft)
        final = load_file(run / "final" / "adapter_model.safetensors")
        suite.at_most(f"qlora {name} adapter weights", max(error(final[key], state[key]) for key in state), 2e-6)


def check_written_files():
    """Models that `ckpt quantize` writes: transformers loads them, and finds what it would have quantized itself. Nested
    scales may differ in the last bit of their offset, since that is a mean whose order of summation is free. Rows are whole
    blocks, as in check_qlora."""
    ids = torch.randint(0, 131, (2, 48), generator=torch.Generator().manual_seed(1))
    for code, nested, family in (("nf4", False, "llama"), ("nf4", True, "qwen2"), ("fp4", False, "mistral")):
        name = f"written {code}{' nested' if nested else ''} {family}"
        source = models.save(models.make(family=family, hidden_size=64, intermediate_size=192), suite.folder / f"{code}-{family}")
        files = suite.folder / f"{code}-{family}-written"
        suite.run("ckpt", "quantize", source, "--out", files, f"quant.type={code}", f"quant.double_quant={str(nested).lower()}")
        load = lambda path, **four_bits: AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, device_map="cpu", attn_implementation="eager", **four_bits).train()
        ours, theirs = load(files), load(source, quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=code, bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=torch.float32))
        a, b = ours.state_dict(), theirs.state_dict()
        suite.check(f"{name}: keys", a.keys() == b.keys(), str(sorted(a.keys() ^ b.keys())[:4]))
        free = ("absmax", "nested_absmax", f"quant_state.bitsandbytes__{code}") if nested else ()
        differ = [key for key in a if not (nested and key.endswith(free)) and not torch.equal(a[key], b[key])]
        suite.check(f"{name}: {len(a)} tensors", code == "fp4" or not differ, str(differ[:4]))
        for module in ours.modules():
            if hasattr(module, "compute_dtype"):
                module.compute_dtype = torch.float32
        config = suite.config(f"{code}-{family}-read", files, quant={"plugin": "bnb4"})
        with torch.no_grad():
            logits = ours(ids).logits
            suite.at_most(f"{name}: logits", error(suite.logits(config, ids), logits), 1e-5)
            suite.at_most(f"{name}: logits beside theirs", error(logits, theirs(ids).logits), 1e-5 if not nested else 1e-2)


def kill_after_first_step(config):
    """Trains on four ranks, and kills all of them after the first checkpoint."""
    command = [suite.args.chassis, "train", config, "--nproc", "4", "run.max_steps=500", "checkpoint.keep_last=0"]
    for folder in suite.args.plugin_path:
        command += ["--plugin-path", folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    for line in process.stdout:
        if "step-000001 saved" in line:
            break
    else:
        raise SystemExit(f"exit code {process.wait()} before the first checkpoint: {command}")
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    suite.check("qlora killed", process.wait() == -signal.SIGKILL)


def check_killed_run():
    """A run on a base of bitsandbytes' files that four ranks began, and two and three ended, gives peft its adapter."""
    model = models.make(hidden_size=64, intermediate_size=192)
    source = models.save(model, suite.folder / "killed")
    data = suite.folder / "killed.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in documents(9, 131, (3, 130), 40)))
    load = lambda path, **four_bits: AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, device_map="cpu", attn_implementation="eager", **four_bits)
    stored = load(source, quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32))
    files = suite.folder / "killed-4bit"
    stored.save_pretrained(files)
    tables = dict(quant={"plugin": "bnb4"}, adapter={"plugin": "lora", "rank": 8}, checkpoint={"every_steps": 1},
                  data={"cache_dir": str(suite.folder)}, data__train=[{"path": str(data), "format": "tokens"}],
                  train={"seq_len": 32, "micro_batch_size": 1, "global_batch_size": 12},
                  optimizer={"plugin": "adamw8bit", "min_8bit_size": 512, "lr": 1e-2, "eps": 1e-4})
    fsdp2 = dict(parallel=[{"plugin": "fsdp2"}])
    whole = suite.config("killed-whole", files, run={"max_steps": 6}, **tables)
    suite.run("train", whole)
    losses = [step["loss"] for step in metrics(suite.folder / "killed-whole-run")]
    kill_after_first_step(suite.config("killed-first", files, **tables, **fsdp2))
    first = suite.folder / "killed-first-run" / "checkpoints" / "step-000001"
    ids = torch.randint(0, 131, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = stored.train()(ids).logits
    for ranks in (2, 3):
        config = suite.config(f"killed-{ranks}", files, run={"max_steps": 6, "resume": str(first)}, **tables, **fsdp2)
        suite.run("train", config, "--nproc", ranks)
        run = suite.folder / f"killed-{ranks}-run"
        rest = [step["loss"] for step in metrics(run)]
        suite.at_most(f"qlora killed, losses on {ranks} ranks", max(abs(a - b) / b for a, b in zip(rest, losses[1:], strict=True)), 2e-6)
        adapter = suite.config(f"killed-{ranks}-loaded", files, quant={"plugin": "bnb4"},
                               adapter={"plugin": "lora", "path": str(run / "final")})
        peft = PeftModel.from_pretrained(load(files), run / "final").train()
        with torch.no_grad():
            theirs = peft(ids).logits
        suite.at_most(f"qlora killed, logits of the export of {ranks} ranks in peft", error(suite.logits(adapter, ids), theirs), 1e-5)
        suite.check(f"qlora killed, the adapter of {ranks} ranks changes logits", error(theirs, plain) > 1e-3)


passed = []
suite = Suite(__doc__)
for check in (check_codes, check_fp4, check_nested, check_states, check_qlora, check_written_files, check_killed_run):
    if suite.args.only in check.__name__:
        check()
suite.close()
