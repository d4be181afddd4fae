#!/bin/sh
# Third-party plugins from end to end: builds the examples against an installed prefix with gcc and clang, trains with
# them, and compares the losses with those of the program's own plugins.
#   third_party.sh BUILD_DIR [SDK_BUILD_DIR COMPILERS]
# With SDK_BUILD_DIR, the SDK and all plugins are from that build, which may have another ABI minor than the host.
set -eu
build=$1
sdk_build=${2:-}
compilers=${3:-gcc clang}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Runs a command; prints its output only if it fails.
quietly() { "$@" > "$scratch/log" 2>&1 || { echo "failed: $*"; tail -40 "$scratch/log"; exit 1; }; }

quietly cmake --install "$build" --prefix "$scratch/installed"
prefix=$scratch/moved   # tests that the prefix can be moved
mv "$scratch/installed" "$prefix"
if [ -n "$sdk_build" ]; then
  quietly cmake --install "$sdk_build" --prefix "$scratch/sdk"
  for folder in include share lib/chassis/plugins; do
    rm -r "$prefix/$folder"
    mv "$scratch/sdk/$folder" "$prefix/$folder"
  done
  for plugin in "$prefix"/lib/chassis/plugins/*.so; do
    "$prefix/bin/chassis" plugins info "$plugin" | grep -q '^  CUDA ' || echo "$plugin"   # CUDA plugins are skipped: there may be no GPU
  done > "$scratch/plugins"
  # A reader of rows without a file of its kind is compared with nothing, which is not a failure here. Plugins of a debug
  # build may take long.
  cat > "$scratch/check" <<'END'
log=$(mktemp)
"$1" plugins check "$2" --timeout 900 > "$log" 2>&1 || grep -q 'is not known to conform' "$log" || { cat "$log"; exit 255; }
rm "$log"
END
  quietly xargs -n 1 -P "${CHASSIS_JOBS:-2}" sh "$scratch/check" "$prefix/bin/chassis" < "$scratch/plugins"
  echo "$(wc -l < "$scratch/plugins") plugins pass the conformance tests"
fi

. "$(dirname "$0")/tiny_run.sh"

# train NAME ARGUMENT…: writes the losses of a run to losses.NAME
train() {
  name=$1
  shift
  quietly "$prefix/bin/chassis" train "$scratch/run.toml" "run.output_dir=$scratch/out-$name" "$@"
  sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p' "$scratch/out-$name/metrics.jsonl" > "$scratch/losses.$name"
  [ "$(wc -l < "$scratch/losses.$name")" -ge 5 ] || { echo "$name: too few losses"; cat "$scratch/out-$name/metrics.jsonl"; exit 1; }
}
# build EXAMPLE: builds it with $compiler in $scratch/EXAMPLE-$compiler and runs the conformance tests, for which its
# folder is searched if it computes ops of its own
build() {
  dir=$scratch/$1-$compiler
  quietly cmake -S "$prefix/share/chassis/examples/$1" -B "$dir" "-DCMAKE_PREFIX_PATH=$prefix" -DCHASSIS_RUST=ON \
    ${cxx:+-DCMAKE_C_COMPILER=$compiler "-DCMAKE_CXX_COMPILER=$cxx"}
  quietly cmake --build "$dir"
  quietly "$prefix/bin/chassis" plugins check "$dir/$1.so" --plugin-path "$dir"
}
# refused WORDS ARGUMENT…: expects that a run of two processes fails with this message
refused() {
  words=$1
  shift
  if "$prefix/bin/chassis" train "$scratch/run.toml" --nproc 2 "run.output_dir=$scratch/out-refused" attention.plugin=sdpa parallel.0.plugin=ddp "$@" \
    > "$scratch/log" 2>&1 || ! grep -q "$words" "$scratch/log"; then
    echo "not refused with the message \"$words\":"; tail -20 "$scratch/log"; exit 1
  fi
}
# compare NAME [OTHER [BOUND]]: compares the losses of a run with those of another, by default of sdpa
compare() {
  paste "$scratch/losses.${2:-sdpa}" "$scratch/losses.$1" | awk -v name="$1" -v bound="${3:-2e-6}" '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d }
    END { printf "%s: losses differ by %.1e\n", name, worst; exit !(worst <= bound) }'
}
# train_pairs NAME EXAMPLE: a run on pairs of answers with an example objective
i=0
while [ $i -lt 24 ]; do
  printf '{"prompt": "count to %d", "chosen": "one to %d", "rejected": "no, %d"}\n' $i $((i * i)) $((i * 7))
  i=$((i + 1))
done > "$scratch/pairs.jsonl"
printf 'user = "{{content}}\\n"\nassistant = "{{content}}"\nassistant_close = "|\\n"\nstop = ["|"]\n' > "$scratch/lines.toml"
train_pairs() {
  train "$1" attention.plugin=sdpa train.task=preference "data.train.0.path=$scratch/pairs.jsonl" \
    data.train.0.format=preference "data.template=$scratch/lines.toml" optimizer.lr=0.01 "objective.plugin=$2" \
    objective.margin=4 --plugin-path "$dir"
}
# A tokenizer and an objective in Rust, which no C compiler builds.
if command -v cargo > /dev/null; then
  compiler=cargo
  build objective_rust
  train_pairs objective_rust objective_rust
  build tokenizer_rust
  train tokenizer_rust attention.plugin=sdpa tokenizer.plugin=tokenizer_rust model.config.vocab_size=262 \
    --plugin-path "$dir"
fi
train sdpa
sed -i 's/plugin = "sdpa"/plugin = "THIRD"/' "$scratch/run.toml"

for compiler in $compilers; do
  command -v $compiler > /dev/null || { echo "$compiler is not installed: skipped"; continue; }
  cxx=$(echo $compiler | sed 's/gcc/g++/; s/clang/clang++/')
  for example in attention_cpp attention_c; do
    build $example
    train $example-$compiler "attention.plugin=$example" --plugin-path "$dir"
    compare $example-$compiler
  done
  # An optimizer: the loss falls in a run with it.
  build optimizer_cpp
  train optimizer_cpp-$compiler attention.plugin=sdpa optimizer.plugin=optimizer_cpp --plugin-path "$dir"
  awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first) }' "$scratch/losses.optimizer_cpp-$compiler" ||
    { echo "optimizer_cpp-$compiler: the loss does not fall"; cat "$scratch/losses.optimizer_cpp-$compiler"; exit 1; }
  # An objective in C and in C++, with the same losses, which fall.
  for example in objective_c objective_cpp; do
    build $example
    train_pairs $example-$compiler $example
  done
  compare objective_c-$compiler objective_cpp-$compiler
  [ ! -e "$scratch/losses.objective_rust" ] || compare objective_rust objective_cpp-$compiler
  awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.1) }' "$scratch/losses.objective_cpp-$compiler" ||
    { echo "objective_cpp-$compiler: the loss does not fall"; cat "$scratch/losses.objective_cpp-$compiler"; exit 1; }
  # A sink: its file has a line for each of its metrics.
  build sink_cpp
  train sink_cpp-$compiler attention.plugin=sdpa log.sinks=console,jsonl,sink_cpp --plugin-path "$dir"
  [ "$(grep -c ': first .*, least .*, last ' "$(find "$scratch" -name summary.txt -newer "$dir" | head -1)")" = 2 ] ||
    { echo "sink_cpp-$compiler: no summary of two metrics"; exit 1; }
  # An adapter: its run starts with the loss of the model alone, since it changes nothing at first, and then learns.
  build adapter_cpp
  train adapter_cpp-$compiler attention.plugin=sdpa adapter.plugin=adapter_cpp optimizer.plugin=adamw optimizer.lr=0.03 \
    export.when=never checkpoint.contents=full --plugin-path "$dir"
  head -1 "$scratch/losses.sdpa" | cat - "$scratch/losses.adapter_cpp-$compiler" | awk '
      function abs(x) { return x < 0 ? -x : x }
      NR == 1 { base = $1 } NR == 2 { first = $1 } NR > 2 { last = $1 }
      END { exit !(abs(first - base) < 1e-5 && abs(last - first) > 1e-4) }' ||
    { echo "adapter_cpp-$compiler: it does not start as the model, or does not learn"; cat "$scratch/losses.sdpa" "$scratch/losses.adapter_cpp-$compiler"; exit 1; }
  # A quantization: LoRA on it has nearly the losses of LoRA alone, and two processes those of one.
  build quant_cpp
  lora='attention.plugin=sdpa adapter.plugin=lora optimizer.plugin=adamw optimizer.lr=0.01 precision.compute=fp32 export.when=never checkpoint.contents=full'
  train lora-$compiler $lora
  train quant_cpp-$compiler $lora quant.plugin=quant_cpp --plugin-path "$dir"
  paste "$scratch/losses.lora-$compiler" "$scratch/losses.quant_cpp-$compiler" | awk '
      { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d } NR == 1 { first = $2 } { last = $2 }
      END { exit !(worst > 1e-8 && worst < 1e-3 && last < first - 1e-3) }' ||
    { echo "quant_cpp-$compiler: 8 bits change nothing, or too much, or the loss does not fall"; paste "$scratch/losses.lora-$compiler" "$scratch/losses.quant_cpp-$compiler"; exit 1; }
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "fsdp2"\n' >> "$scratch/run.toml"
  train quant_cpp+fsdp2-$compiler $lora quant.plugin=quant_cpp --nproc 2 --plugin-path "$dir"
  mv "$scratch/run.saved" "$scratch/run.toml"
  compare quant_cpp+fsdp2-$compiler quant_cpp-$compiler
  # A model family: two processes that divide it have the losses of one, and its export is trained further.
  build model_cpp
  olmo2='model.config={architectures = ["Olmo2ForCausalLM"], vocab_size = 259, hidden_size = 48, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2}'
  train model_cpp-$compiler attention.plugin=sdpa model.plugin=model_cpp "$olmo2" --plugin-path "$dir"
  awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first) }' "$scratch/losses.model_cpp-$compiler" ||
    { echo "model_cpp-$compiler: the loss does not fall"; cat "$scratch/losses.model_cpp-$compiler"; exit 1; }
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "fsdp2"\n' >> "$scratch/run.toml"
  train model_cpp+fsdp2-$compiler attention.plugin=sdpa model.plugin=model_cpp "$olmo2" --nproc 2 --plugin-path "$dir"
  mv "$scratch/run.saved" "$scratch/run.toml"
  compare model_cpp+fsdp2-$compiler model_cpp-$compiler
  grep -v '^plugin = "llama"' "$scratch/run.toml" | sed '/^\[model.config\]/,/^\[tokenizer\]/{/^\[tokenizer\]/!d}' > "$scratch/olmo2.toml"
  sed -i 's/"THIRD"/"sdpa"/' "$scratch/olmo2.toml"
  quietly "$prefix/bin/chassis" train "$scratch/olmo2.toml" "run.output_dir=$scratch/out-olmo2-$compiler" \
    "model.path=$scratch/out-model_cpp-$compiler/final" --plugin-path "$dir"
  # A strategy and a backend: two processes have the losses of one.
  for example in parallel_cpp comm_cpp; do
    build $example
  done
  refused "comm/comm_cpp would wrap itself" comm.plugin=comm_cpp comm.wraps=comm_cpp --plugin-path "$dir"
  refused "has no option 'waps'" comm.plugin=comm_cpp 'comm.wraps_options={waps = "x"}' --plugin-path "$dir"
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "parallel_cpp"\n[comm]\nplugin = "comm_cpp"\n' >> "$scratch/run.toml"
  train parallel_cpp+comm_cpp-$compiler attention.plugin=sdpa --nproc 2 --plugin-path "$scratch/parallel_cpp-$compiler" --plugin-path "$scratch/comm_cpp-$compiler"
  mv "$scratch/run.saved" "$scratch/run.toml"
  compare parallel_cpp+comm_cpp-$compiler
  # Tensor parallelism: two processes that divide heads and MLPs have the losses of one.
  build tensor_cpp
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "tensor_cpp"\n' >> "$scratch/run.toml"
  train tensor_cpp-$compiler attention.plugin=sdpa --nproc 2 --plugin-path "$dir"
  mv "$scratch/run.saved" "$scratch/run.toml"
  compare tensor_cpp-$compiler
  # The linears of experts in C: the losses of the program's own.
  build grouped_c
  experts='vocab_size = 259, hidden_size = 48, num_hidden_layers = 2, num_attention_heads = 4, num_experts = 5, num_experts_per_tok = 2, moe_intermediate_size = 24'
  qwen3_moe="model.config={$experts, num_key_value_heads = 2, head_dim = 12}"
  train qwen3_moe-$compiler attention.plugin=sdpa precision.compute=fp32 model.plugin=qwen3_moe "$qwen3_moe"
  train grouped_c-$compiler attention.plugin=sdpa precision.compute=fp32 model.plugin=qwen3_moe "$qwen3_moe" \
    kernels.plugins=grouped_c,auto --plugin-path "$dir"
  grep -q 'gate_proj": *"grouped_c"' "$scratch/out-grouped_c-$compiler/plugins.lock" ||
    { echo "grouped_c-$compiler: it computes nothing"; cat "$scratch/out-grouped_c-$compiler/plugins.lock"; exit 1; }
  compare grouped_c-$compiler qwen3_moe-$compiler 1e-6
  # A router that is an op of its own: the loss falls, and two processes have the losses of one.
  build router_cpp
  hash_moe="model.config={architectures = [\"HashMoeForCausalLM\"], $experts}"
  train router_cpp-$compiler attention.plugin=sdpa model.plugin=router_cpp "$hash_moe" kernels.plugins=router_cpp,auto \
    --plugin-path "$dir"
  awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first) }' "$scratch/losses.router_cpp-$compiler" ||
    { echo "router_cpp-$compiler: the loss does not fall"; cat "$scratch/losses.router_cpp-$compiler"; exit 1; }
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "fsdp2"\n' >> "$scratch/run.toml"
  train router_cpp+fsdp2-$compiler attention.plugin=sdpa model.plugin=router_cpp "$hash_moe" \
    kernels.plugins=router_cpp,auto --nproc 2 --plugin-path "$dir"
  mv "$scratch/run.saved" "$scratch/run.toml"
  compare router_cpp+fsdp2-$compiler router_cpp-$compiler
  # Formats: the examples in both languages export the same file, and a run resumes from a checkpoint of two processes.
  for example in format_cpp format_c; do
    build $example
    train $example-$compiler attention.plugin=sdpa "export.plugin=$example" --plugin-path "$dir"
    compare $example-$compiler
    quietly "$prefix/bin/chassis" ckpt verify "$scratch/out-$example-$compiler/final"
  done
  cmp "$scratch/out-format_cpp-$compiler/final/model.npz" "$scratch/out-format_c-$compiler/final/model.npz"
  cp "$scratch/run.toml" "$scratch/run.saved"
  printf '[[parallel]]\nplugin = "fsdp2"\n[checkpoint]\nplugin = "format_cpp"\nevery_steps = 3\n' >> "$scratch/run.toml"
  train npz-$compiler attention.plugin=sdpa --nproc 2 --plugin-path "$scratch/format_cpp-$compiler"
  compare npz-$compiler
  quietly "$prefix/bin/chassis" train "$scratch/run.toml" "run.output_dir=$scratch/out-more-$compiler" run.max_steps=5 attention.plugin=sdpa \
    "run.resume=$scratch/out-npz-$compiler/checkpoints/step-000003" --plugin-path "$scratch/format_cpp-$compiler"
  sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p' "$scratch/out-more-$compiler/metrics.jsonl" > "$scratch/losses.more"
  tail -2 "$scratch/losses.npz-$compiler" | paste - "$scratch/losses.more" | awk '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d <= 2e-6)) exit 1; ++n } END { exit n != 2 }' ||
    { echo "npz-$compiler: a resumed run differs"; exit 1; }
  mv "$scratch/run.saved" "$scratch/run.toml"
  # A plugin of this repository with ISA_SOURCES, built as a third-party plugin.
  dir=$scratch/fused-$compiler
  mkdir "$dir"
  cp "$(dirname "$0")"/../../plugins/ops/fused/*.?pp "$dir"
  { printf 'cmake_minimum_required(VERSION 3.25)\nproject(fused LANGUAGES CXX)\nfind_package(Chassis REQUIRED)\n'
    printf 'set(CHASSIS_PLUGIN_OUTPUT_DIR "${PROJECT_BINARY_DIR}")\n'
    cat "$(dirname "$0")/../../plugins/ops/fused/CMakeLists.txt"; } > "$dir/CMakeLists.txt"
  quietly cmake -S "$dir" -B "$dir/build" "-DCMAKE_PREFIX_PATH=$prefix" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=$cxx"
  quietly cmake --build "$dir/build" -j
  quietly "$prefix/bin/chassis" plugins check "$dir/build/fused.so"
  echo "fused-$compiler: passes the conformance tests"
done
