#!/usr/bin/env bash
# installed_test.sh BUILD_DIR TEXT: installs into a prefix, moves it, builds the examples against it with gcc and with
# clang, trains with each by changing one key, and compares the losses with those of sdpa.
set -euo pipefail
build=$1 text=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
quietly() { "$@" > log 2>&1 || { cat log; echo "failed: $*"; exit 1; }; }

quietly cmake --install "$build" --prefix "$scratch/first"
mv first moved
prefix=$scratch/moved
chassis=$prefix/bin/chassis
quietly "$chassis" version

cat > run.toml <<END
schema_version = 1
[run]
output_dir = "run"
max_steps = 4
resume = "never"
device = "cpu"
[model]
plugin = "llama"
[model.config]
architectures = ["LlamaForCausalLM"]
vocab_size = 259
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 128
rms_norm_eps = 1e-5
[tokenizer]
plugin = "bytes"
[data]
cache_dir = "$scratch/cache"
[[data.train]]
path = "$text"
documents = "paragraph"
[train]
seq_len = 128
micro_batch_size = 2
global_batch_size = 4
[optimizer]
plugin = "adamw"
lr = 1e-3
eps = 1e-4
[attention]
plugin = "sdpa"
END

# losses NAME ARGUMENTS…: trains, and leaves the loss of every step in NAME.losses.
losses() {
  local name=$1
  shift
  rm -rf run
  quietly "$chassis" train "$@"
  sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' run/metrics.jsonl > "$name.losses"
}
losses sdpa run.toml
[ "$(wc -l < sdpa.losses)" = 4 ] || { echo "expected 4 losses:"; cat sdpa.losses; exit 1; }

compilers=0
for compiler in "gcc g++" "clang clang++"; do
  read -r c cxx <<< "$compiler"
  command -v "$cxx" > /dev/null || continue
  compilers=$((compilers + 1))
  for example in attention_cpp attention_c; do
    quietly cmake -S "$prefix/share/chassis/examples/$example" -B "$example-$c" -DCMAKE_PREFIX_PATH="$prefix" \
      -DCMAKE_C_COMPILER="$c" -DCMAKE_CXX_COMPILER="$cxx"
    quietly cmake --build "$example-$c"
    losses "$example" --plugin-path "$scratch/$example-$c" run.toml "attention.plugin=$example"
    paste sdpa.losses "$example.losses" | awk -v name="$example with $c" '
      NF != 2 { exit 1 }
      { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; if (d > 2e-6 * $1) bad = 1 }
      END { printf "%s: %d losses, worst difference %.1e\n", name, NR, worst; exit bad || NR != 4 }' ||
      { paste sdpa.losses "$example.losses"; exit 1; }
  done
done
[ $compilers -gt 0 ] || { echo "neither gcc nor clang was found"; exit 1; }
