#!/bin/sh
# build-rust.sh BUILD_DIR NAME OUTPUT.so FOLDERS CARGO ARGUMENT…: runs cargo, and copies the cdylib NAME from its folder
# to OUTPUT.so, with a list of its sources for the build system beside the folder. Messages of the plugin name sources
# without the folders in the list FOLDERS, which colons separate: it is the same file wherever it was built.
set -eu
build_dir=$1 name=$(echo "$2" | tr - _) output=$3 folders=$4
shift 4
separator=$(printf '\037')
flags=${CARGO_ENCODED_RUSTFLAGS-$(echo "${RUSTFLAGS-}" | tr -s ' ' "$separator")}
IFS=:
for folder in $folders; do
  [ -z "$folder" ] || flags=${flags:+$flags$separator}--remap-path-prefix=$folder/=
done
unset IFS
CARGO_ENCODED_RUSTFLAGS=$flags "$@"
built=$build_dir/release/lib$name
mkdir -p "$(dirname "$output")"
cp "$built.so" "$output.part"
mv "$output.part" "$output"
# cargo's list has one line for each file that it built.
sed -n "s|^[^:]*\.so:|$output:|p" "$built.d" > "$build_dir/$(basename "$output" .so).d"
