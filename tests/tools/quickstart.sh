#!/bin/sh
# quickstart.sh SOURCE_DIR: a short run of tools/quickstart gets a warm-up that fits into it. Nothing is built.
set -eu
source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tools" "$folder/.deps" "$folder/bin" "$folder/build/release/bin" "$folder/out/quickstart"
cp "$source/tools/quickstart" "$folder/tools/"
for stub in tools/bootstrap bin/cmake; do
  printf '#!/bin/sh\n' > "$folder/$stub"
done
printf '#!/bin/sh\necho "$@" >> words\n' > "$folder/build/release/bin/chassis"
echo '{"loss": 5.0}' > "$folder/out/quickstart/metrics.jsonl"
chmod +x "$folder/tools/bootstrap" "$folder/bin/cmake" "$folder/build/release/bin/chassis"

expect() {   # expect WORDS ARGUMENTS: the words of `chassis train` with these arguments
  words=$1
  shift
  rm -f "$folder/words"
  PATH="$folder/bin:$PATH" "$folder/tools/quickstart" "$@" > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
  grep -qx "train configs/quickstart/cpu.toml$words" "$folder/words" ||
    { echo "quickstart $*: expected train …$words, found:"; cat "$folder/words"; exit 1; }
}
expect ""
expect " schedule.warmup_steps=2 run.max_steps=20" run.max_steps=20
expect " schedule.warmup_steps=0 run.max_steps=8" run.max_steps=8
expect " schedule.warmup_steps=2 run.max_steps=20 schedule.warmup_steps=5" run.max_steps=20 schedule.warmup_steps=5
expect " run.max_steps=200 run.device=cpu" run.max_steps=200 run.device=cpu
