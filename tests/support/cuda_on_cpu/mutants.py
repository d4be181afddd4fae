#!/usr/bin/env python3
"""Plants one defect after another in CUDA kernels, and checks that their tests on the CPU find each.

The table is TOML: `filter` names the GoogleTest tests to run, and each [[mutant]] has a `name`, a text `line` that the
kernels contain once, and the text `with` that replaces it. A mutant is compiled with AddressSanitizer and run with
three orders of threads, then with ThreadSanitizer; what finds it first is printed. Without a mutant all of these must
pass.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

FLAGS = ["-std=c++17", "-O0", "-w", "-ffp-contract=off", "-DCHASSIS_CUDA_ON_CPU"]
ORDERS = ("ascending", "descending", "shuffled:1")
# Sanitizer, and the orders to run.
MODES = (("address", ORDERS), ("thread", ORDERS[:1]))
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", "OMP_WAIT_POLICY": "PASSIVE"}
# What finds a mutant, by what the program prints.
FINDERS = ((r"ERROR: AddressSanitizer", "AddressSanitizer"), (r"WARNING: ThreadSanitizer", "ThreadSanitizer"),
           (r"cuda_on_cpu: ", "scheduler"), (r"\[  FAILED  \]", "values"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--kernels", type=Path, required=True, help="the .cu file")
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--include", nargs="+", required=True, help="folders")
    parser.add_argument("--objects", nargs="+", required=True, help="of the tests, and of tests/support/cuda_on_cpu")
    parser.add_argument("--libraries", nargs="+", required=True)
    return parser.parse_args()


def planted(source, mutant):
    """The source with the mutant. Fails if its line does not occur, or is not the only one."""
    count = source.count(mutant["line"])
    if count != 1:
        sys.exit(f"mutants: '{mutant['name']}': the kernels contain its line {count} times, expected once: "
                 f"{mutant['line']!r}")
    if mutant["line"] == mutant["with"]:
        sys.exit(f"mutants: '{mutant['name']}' changes nothing")
    return source.replace(mutant["line"], mutant["with"])


class Suite:
    def __init__(self, options, table, scratch):
        self.options = options
        self.table = table
        self.scratch = Path(scratch)
        # The object of the original kernels is replaced.
        original = f"_{options.kernels.name}.cpp.o"
        self.objects = [name for name in options.objects if not name.endswith(original)]
        if len(self.objects) != len(options.objects) - 1:
            sys.exit(f"mutants: no single object is called …{original}")
        # ThreadSanitizer needs addresses that are not random.
        works = subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
        self.prefix = ["setarch", "-R"] if works else []

    def build(self, name, text, sanitizer):
        source = self.scratch / f"{name}.cpp"
        source.write_text(text)
        flags = [f"-fsanitize={sanitizer}", *(["-fuse-ld=lld"] if shutil.which("ld.lld") else [])]
        if sanitizer == "address" and "clang" not in self.options.compiler:
            flags.append("-fsanitize-sections=cuda_on_cpu_shared")
        include = [self.options.kernels.parent, Path(__file__).parent, *self.options.include]
        program = self.scratch / f"{name}_{sanitizer}"
        command = [self.options.compiler, *FLAGS, *flags, *(f"-I{folder}" for folder in include), str(source),
                   *self.objects, *self.options.libraries, "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"does not compile:\n{shlex.join(command)}\n{done.stderr}")
        return program

    def finder(self, program, order):
        """What finds a defect, or None; and the output."""
        environment = {**os.environ, **ENVIRONMENT, "CUDA_ON_CPU_ORDER": order}
        command = [*self.prefix, str(program), "--gtest_brief=1", "--gtest_fail_fast",
                   f"--gtest_filter={self.table['filter']}"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                  timeout=120)
        except subprocess.TimeoutExpired:
            return "time", "it does not end within 120 s"
        output = done.stdout + done.stderr
        if done.returncode == 0:
            return None, output
        return next((who for pattern, who in FINDERS if re.search(pattern, output)), "crash"), output

    def try_mutant(self, index, text):
        """Where the defect is found, or None; and the output."""
        for sanitizer, orders in MODES:
            program = self.build(f"mutant{index}", text, sanitizer)
            for order in orders:
                who, output = self.finder(program, order)
                if who is not None:
                    return f"{who}, {order}", output
            program.unlink()
        return None, ""


def main():
    options = arguments()
    table = tomllib.loads(options.table.read_text())
    source = options.kernels.read_text()
    texts = [source, *(planted(source, mutant) for mutant in table["mutant"])]
    names = ["without a mutant", *(mutant["name"] for mutant in table["mutant"])]
    failed = False
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        suite = Suite(options, table, scratch)
        results = pool.map(suite.try_mutant, range(len(texts)), texts)
        for index, (name, (found, output)) in enumerate(zip(names, results)):
            is_wrong = (found is None) != (index == 0)
            failed = failed or is_wrong
            print(f"{'WRONG ' if is_wrong else ''}{name}: {found or 'not found'}", flush=True)
            if is_wrong and output:
                print(output)
    if failed:
        sys.exit("mutants: a defect was not found, or one was found where there is none")
    print(f"mutants: {len(names) - 1} of {len(names) - 1} found in {options.kernels.name}")


if __name__ == "__main__":
    main()
