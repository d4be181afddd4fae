"""The stages of `tools/gpu-check --prove`, most valuable first. Each yields rows: (name, state, figures)."""
import shutil
from pathlib import Path

from gpu_check.machine import Machine
from gpu_check.report import Deadline, Missing, document_in, last_line, run
from gpu_check.training import BNB4, LORA, Training, llama

PROVE_SECONDS = 240

# The largest difference of the losses of a step, as a share of the loss: of the first ten steps, and of all 200. The
# first steps show wrong kernels: weights are still nearly equal, and only sums are rounded otherwise. Later steps show
# what training has made of these differences; AdamW divides by the root of a small average, and so turns the last bit
# of a small gradient into a step of full length. In fp32 the first bound is some hundred roundings of 6e-8; in bf16 it
# is about two of 4e-3. The second bounds are chosen, not measured.
TOLERANCES = {"fp32": (1e-5, 2e-2), "bf16": (1e-2, 5e-2)}
PLAN_TOLERANCE = 0.03
REHEARSED_PLAN_TOLERANCE = 0.1  # of tiny models: what no plan counts, such as a kernel's scratch, is a larger share


def stages(machine: Machine, is_rehearsal: bool) -> list:
    """(name, seconds, function of a deadline)."""
    bound = lambda stage: lambda deadline: stage(machine, deadline, is_rehearsal)
    return [("tests", 60, bound(run_tests)), ("equality", 80, bound(compare_losses)), ("runs", 60, bound(other_runs)),
            ("sanitizer", 60, bound(sanitize)), ("plan", 40, bound(compare_plans)), ("comm", 40, bound(end_ranks))]


def run_test(machine: Machine, test: dict, seconds: float, prefix=(), more=()):
    environment = {**machine.environment, **test["environment"]}
    done = run([*prefix, test["file"], *test["arguments"], *more], seconds, environment)
    figures = {"seconds": round(done.seconds, 2)}
    if done.cut_off:
        return "cut off", figures
    if done.code != 0:
        return "failed", {**figures, "code": done.code, "reason": last_line(done.text), "output": done.text[-1500:]}
    if "SKIPPED" in done.text:
        return "missing", {**figures, "reason": last_line(done.text)}
    return "passed", figures


def run_tests(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    for test in machine.require_tests()["tests"]:
        if not test["name"].startswith("plugins/comm/"):  # another stage runs those
            yield (test["name"], *run_test(machine, test, deadline.left(40)))


def differences(ours: list, theirs: list) -> dict:
    """How far apart the losses of two runs are, as shares of the second."""
    shares = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    return {"steps": len(shares), "first_10": max(shares[:10]), "all": max(shares), "first_loss": theirs[0],
            "last_loss": theirs[-1]}


def judge(figures: dict, tolerances, num_steps: int) -> str:
    if figures["steps"] < num_steps:
        return "cut off"
    return "passed" if figures["first_10"] <= tolerances[0] and figures["all"] <= tolerances[1] else "failed"


def compare_losses(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    """The same run on the CPU and on the device. It repeats 32 rows, so that the loss falls to a fraction. In a
    rehearsal on a CPU, another attention kernel takes the place of the device."""
    num_steps = 20 if is_rehearsal else 200
    model = llama(4, 128, 384, 4, 2, 512, 128)
    training = Training(machine, "equality", model, 128, 8, num_steps, num_rows=32)
    other = ["attention.plugin=naive"] if machine.on_cpu else [f"run.device={machine.device}"]
    for dtype, tolerances in TOLERANCES.items():
        common = [f"precision.compute={dtype}", "optimizer.lr=1e-3", "run.max_steps=%d" % num_steps]
        here = training.start(f"cpu-{dtype}", deadline.left(), *common, "run.device=cpu")
        there = training.start(f"device-{dtype}", deadline.left(), *common, *other)
        if not here.steps or not there.steps:
            lacking = here if not here.steps else there
            yield dtype, "cut off" if lacking.done.cut_off else "failed", {"reason": lacking.reason()}
            continue
        figures = differences(there.losses(), here.losses())
        state = judge(figures, tolerances, num_steps)
        yield dtype, state, {**figures, "tolerance_first_10": tolerances[0], "tolerance_all": tolerances[1],
                             **({"reason": there.reason()} if state == "cut off" else {}), "losses": there.losses()}


def other_runs(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    """Resuming, offloading and generating give what they must; what a device cannot do is refused by name."""
    model, tokenizer = llama(2, 128, 384, 4, 2, 512, 64), '[tokenizer]\nplugin = "bytes"\n'
    training = Training(machine, "runs", model, 64, 4, 8, tokenizer)
    common = ["precision.compute=fp32", "optimizer.lr=1e-3"]
    whole = training.start("whole", deadline.left(20), *common)
    if len(whole.steps) != 8:
        yield "eight steps", "cut off" if whole.done.cut_off else "failed", {"reason": whole.reason()}
        return
    yield "eight steps", "passed", {"seconds": round(whole.done.seconds, 2)}
    first = training.start("resumed", deadline.left(20), *common, "run.max_steps=4")
    second = training.start("resumed", deadline.left(20), *common)
    yield same_losses("resume", whole, second if len(first.steps) == 4 else first)
    offload = ["parallel.0.plugin=fsdp2", "parallel.0.offload=cpu"]
    yield same_losses("offload", whole, training.start("offload", deadline.left(20), *common, *offload))
    muon = training.start("muon", deadline.left(20), *common, "optimizer.plugin=muon")
    if not machine.on_cpu:
        is_refused = muon.done.code != 0 and "muon steps on the CPU only" in muon.done.text
        yield "muon without offload is refused", "passed" if is_refused else "failed", {"reason": muon.reason()}
        muon = training.start("muon-offload", deadline.left(20), *common, *offload, "optimizer.plugin=muon")
    yield ("muon", "passed" if len(muon.steps) == 8 else "failed",
           {"steps": len(muon.steps), **({} if len(muon.steps) == 8 else {"reason": muon.reason()})})
    command = [machine.chassis, "generate", whole.output / "resolved.toml", "--prompt", "A",
               "generate.max_new_tokens=8"]
    answer = run(command, deadline.left(20), machine.environment)
    yield "generate", "passed" if answer.code == 0 else "failed", {"reason": last_line(answer.text)}


def same_losses(name: str, expected, found):
    """A row: the losses of two runs in fp32 that must agree but for the order of sums."""
    if len(found.steps) != len(expected.steps):
        return name, "cut off" if found.done.cut_off else "failed", {"reason": found.reason()}
    figures = differences(found.losses(), expected.losses())
    state = "passed" if figures["all"] <= TOLERANCES["fp32"][0] else "failed"
    return name, state, {**figures, "equal_bits": found.losses() == expected.losses()}


def sanitizer_program() -> str:
    for found in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"):
        if found and Path(found).exists():
            return found
    raise Missing("compute-sanitizer is not installed")


def sanitize(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    """The kernel tests, without their largest case."""
    kernels = [test for test in machine.require_tests()["tests"] if test["is_kernel"]]
    program = sanitizer_program()
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        for test in kernels:
            prefix = [program, "--tool", tool, "--error-exitcode", "9"]
            state, figures = run_test(machine, test, deadline.left(30), prefix, ["--gtest_filter=-*OverManyRows"])
            if "not supported" in figures.get("output", ""):  # by the driver of some virtual machines
                raise Missing(f"{program}: {figures['reason']}")
            yield f"{tool} {test['name']}", state, figures


def compare_plans(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    """What was planned, and what the allocator of the device has held at most."""
    if is_rehearsal:
        model, length, rows = llama(2, 128, 384, 4, 2, 512, 128), 128, 4
    else:
        model, length, rows = llama(8, 1024, 2816, 16, 4, 32000, 1024), 1024, 8
    dtype = "fp32" if machine.on_cpu else "bf16"
    for name, more in {"all parameters": "", "LoRA": LORA, "LoRA on 4 bits": LORA + BNB4}.items():
        training = Training(machine, "plan-" + name.replace(" ", "-"), model, length, rows, 20, more)
        settings = [f"precision.compute={dtype}", "recompute.mode=none"]
        result = training.start("run", deadline.left(30), *settings, num_steps=4)
        if len(result.steps) < 3 or not result.planned_bytes():
            yield name, "cut off" if result.done.cut_off else "failed", {"reason": result.reason()}
            continue
        ratio = result.planned_bytes() / result.peak_bytes()
        figures = {"planned_bytes": result.planned_bytes(), "measured_bytes": result.peak_bytes(), "ratio": ratio}
        command = [machine.chassis, "plan", training.folder / "bench.toml", "--device", machine.device.split(":")[0],
                   "--json", *settings]
        planned = run(command, deadline.left(20), machine.environment)
        try:
            figures["plan_command_bytes"] = document_in(planned.text)["ranks"][0]["start"]["peak"]
        except (ValueError, KeyError, IndexError):
            figures["plan_command"] = last_line(planned.text)
        tolerance = REHEARSED_PLAN_TOLERANCE if is_rehearsal else PLAN_TOLERANCE
        yield name, "passed" if abs(ratio - 1) <= tolerance else "failed", figures


def end_ranks(machine: Machine, deadline: Deadline, is_rehearsal: bool):
    """nccl with one rank, its abort included, and two ranks on one card, which NCCL refuses: both must end with its
    error. On a CPU, two ranks over gloo must train."""
    if not machine.on_cpu:
        tests = [test for test in (machine.tests or {"tests": []})["tests"] if test["name"] == "plugins/comm/nccl_gpu"]
        if tests:
            yield ("nccl, one rank, with abort", *run_test(machine, tests[0], deadline.left(30)))
        else:
            yield "nccl, one rank, with abort", "missing", {"reason": "plugins/comm/nccl_gpu is not among --tests"}
    training = Training(machine, "ranks", llama(2, 128, 384, 4, 2, 512, 64), 64, 4, 5)
    device = "cpu" if machine.on_cpu else machine.device.split(":")[0] + ":0"
    settings = [f"run.device={device}", "train.micro_batch_size=2", "parallel.0.plugin=ddp", "mesh.dp_replicate=2",
                "comm.init_timeout_s=20"]
    result = training.start("two", deadline.left(35), *settings, words=["--nproc", "2"])
    figures = {"seconds": round(result.done.seconds, 2), "code": result.done.code, "steps": len(result.steps),
               "reason": result.reason()}
    if result.done.cut_off:
        yield "two ranks", "cut off", figures
    elif machine.on_cpu:
        yield "two ranks", "passed" if result.done.code == 0 and len(result.steps) == 5 else "failed", figures
    else:
        is_named = "nccl" in result.done.text.lower() and result.done.code != 0
        yield "two ranks on one card end with NCCL's error", "passed" if is_named else "failed", figures
