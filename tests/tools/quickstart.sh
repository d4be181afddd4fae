#!/bin/sh
# quickstart.sh SOURCE_DIR: a short run of tools/quickstart gets a warm-up that fits into it; the build shows its
# progress, and its log if it fails. Nothing is built.
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

# A build of 10 files in 200 s, on no terminal, and one that fails.
cat > "$folder/bin/cmake" << 'END'
#!/bin/sh
[ "$1" = --build ] || exit 0
for i in 0 1 2 3 4 5 6 7 8 9 10; do
  echo "$NINJA_STATUS$i.cpp" | sed "s/%f/$i/; s/%t/10/; s/%e/$((i * 20)).5/"
  echo "$i.cpp:1: warning: of no interest"
done
[ ! -e fails ] || { echo "7.cpp:1: error: a mistake"; exit 1; }
END
PATH="$folder/bin:$PATH" "$folder/tools/quickstart" > "$folder/log" 2>&1
printf 'compiling: %s left\n' '2 of 10, about 3 min' '4 of 10, about 2 min' '6 of 10, about 2 min' \
  '8 of 10, about 1 min' '10 of 10, about 0 min' > "$folder/expected"
grep -e compiling -e warning "$folder/log" | cmp - "$folder/expected" || { cat "$folder/log"; exit 1; }
touch "$folder/fails"
if PATH="$folder/bin:$PATH" "$folder/tools/quickstart" > "$folder/log" 2>&1 || ! grep -q "a mistake" "$folder/log"; then
  echo "quickstart: a failed build is not shown:"
  cat "$folder/log"
  exit 1
fi
