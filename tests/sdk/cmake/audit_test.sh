#!/usr/bin/env bash
# audit_test.sh AUDIT: the post-link audit accepts a correct plugin and refuses each kind of faulty plugin with a
# message, with gcc and clang.
set -euo pipefail
audit=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
echo '{ global: chassis_plugin_entry_v1; local: *; };' > one.map
# note MANIFEST: the definition of its note, for printf
note() {
  printf '%s' '__attribute__((used, aligned(4), section(".note.chassis"))) static const struct { unsigned n, d, t; char name[8], body[80]; }
      note = {8, 80, 1, "Chassis", "'"$1"'"};'
}
note=$(note 'chassis-manifest=1\nid=plugin\nversion=0.1.0\nmember=ops/plugin\n')
entry='void* chassis_plugin_entry_v1(void) { return 0; }'
tests=0

# expect WORDS TIER SOURCE COMPILER FLAGS…: the audit prints WORDS about the library, or nothing if WORDS is empty. It
# deletes a refused library only with --delete. kinds and version are arguments of the audit.
kinds='' version=''
expect() {
  local words=$1 tier=$2 source=$3 output
  shift 3
  echo "$source" > plugin.c
  "$@" -shared -fPIC -w -o plugin.so plugin.c
  output=$(sh "$audit" "$PWD/plugin.so" "$tier" readelf "$kinds" "$version" 2>&1 || true)
  tests=$((tests + 1))
  [[ -n $words && $output == *"$words"* || -z $words && -z $output ]] || {
    echo "'$*' on: $source" $'\n'"output: '$output'"$'\n'"expected: '$words'"
    exit 1
  }
  [ -e plugin.so ] || { echo "the audit deleted a library without --delete"; exit 1; }
  sh "$audit" --delete "$PWD/plugin.so" "$tier" readelf "$kinds" "$version" > /dev/null 2>&1 || true
  [ -z "$words" ] || [ ! -e plugin.so ] || { echo "the audit did not delete a refused plugin"; exit 1; }
}

echo 'void at_stub(void) {}' > torch.c
gcc -shared -fPIC -Wl,-soname,libtorch_cpu.so -o libtorch_cpu.so torch.c
for compiler in gcc clang; do
  command -v $compiler > /dev/null || continue
  script=(-Wl,--version-script=one.map)
  expect '' T0 "$note $entry" $compiler "${script[@]}"
  expect 'expected exactly chassis_plugin_entry_v1' T0 "$note void* other(void) { return 0; }" $compiler
  expect 'exports [chassis_plugin_entry_v1 other]' T0 "$note $entry void other(void) {}" $compiler
  expect 'no allocated .note.chassis' T0 "$entry" $compiler "${script[@]}"
  expect 'is T0 but uses LibTorch: [aoti_torch_zeros]' T0 \
    "$note void aoti_torch_zeros(void); void* chassis_plugin_entry_v1(void) { aoti_torch_zeros(); return 0; }" \
    $compiler "${script[@]}"
  cxx='void _ZN2at5emptyEv(void); void* chassis_plugin_entry_v1(void) { _ZN2at5emptyEv(); return 0; }'
  expect 'is T0 but uses LibTorch: [_ZN2at5emptyEv]' T0 "$note $cxx" $compiler "${script[@]}"
  expect "is T1 but uses LibTorch's C++ API" T1 "$note $cxx" $compiler "${script[@]}"
  expect '' T2 "$note $cxx" $compiler "${script[@]}"
  expect 'is T0 but needs [libtorch_cpu.so]' T0 "$note $entry" $compiler "${script[@]}" -Wl,--no-as-needed libtorch_cpu.so
  expect 'could load a second one' T2 "$note $entry" $compiler "${script[@]}" -Wl,--no-as-needed libtorch_cpu.so \
    -Wl,-rpath,/opt/torch
  expect 'expected exactly' T7 "$note int x;" $compiler
  expect 'tier T7 is unknown' T7 "$note $entry" $compiler "${script[@]}"
  expect 'has an empty entry, which is the working directory' T0 "$note $entry" $compiler "${script[@]}" -Wl,-rpath,/opt:
  expect 'has the relative entry [lib]' T0 "$note $entry" $compiler "${script[@]}" -Wl,-rpath,/opt:lib
  expect '' T0 "$note $entry" $compiler "${script[@]}" -Wl,-rpath,/opt:'$ORIGIN/../lib'
done
# The manifest's statements about the plugin.
expect "has the id 'sdpa', expected 'plugin', the name of the file" T0 \
  "$(note 'id=sdpa\nversion=0.1.0\nmember=ops/sdpa\n') $entry" gcc "${script[@]}"
for wrong in '' 1 1.2 v1.2.0 1.2.0- '1.2.0 rc'; do
  expect "has the version '$wrong', expected three numbers, as in 0.1.0" T0 \
    "$(note "id=plugin\nversion=$wrong\nmember=ops/plugin\n") $entry" gcc "${script[@]}"
done
version=1.2.0-rc.1+debian
expect '' T0 "$(note "id=plugin\nversion=$version\nmember=ops/plugin\n") $entry" gcc "${script[@]}"
expect 'has VERSION 1.2.0-rc.1+debian for it, but its manifest has the version 0.1.0;' T0 "$note $entry" gcc "${script[@]}"
version=''
two=$(note 'id=plugin\nversion=0.1.0\nmember=ops/a\nmember=model/b\nmember=ops/c\n')
kinds=ops,model
expect '' T0 "$two $entry" gcc "${script[@]}"
expect 'has KINDS model ops for it, but its manifest has members of the kinds ops; correct KINDS' T0 "$note $entry" gcc "${script[@]}"
kinds=ops
expect 'has KINDS ops for it, but its manifest has members of the kinds model ops; correct KINDS' T0 "$two $entry" gcc "${script[@]}"
kinds=''
# Rust: the compiler adds a flag to the section, and the advice is for Rust.
cat > rustc.s <<'S'
  .section .note.chassis,"aR",@note
  .long 8, 24, 1
  .ascii "Chassis\0id=plugin\nversion=0.1.0\n"
  .section .comment
  .ascii "rustc version 1.95.0\0"
  .section .note.GNU-stack,"",@progbits
S
expect '' T0 "$entry" gcc "${script[@]}" rustc.s
grep -q ' NOTE .* A[RIo] ' <(gcc -shared -fPIC -o flags.so rustc.s && readelf -S -W flags.so) || { echo "the linker dropped the section flag that this case needs"; exit 1; }
expect 'pub extern "C" function of that name' T0 "$entry void other(void) {}" gcc rustc.s
sed -i '/note.chassis/,/Chassis/d' rustc.s
expect '#[link_section = ".note.chassis"]' T0 "$entry" gcc "${script[@]}" rustc.s
expect 'instead of bringing OpenMP' T0 "$note $entry" gcc "${script[@]}" -Wl,--no-as-needed -fopenmp
expect 'readelf cannot read it' T0 "$note $entry" sh -c 'echo "no library" > plugin.so' sh
echo "audit: $tests cases passed"
