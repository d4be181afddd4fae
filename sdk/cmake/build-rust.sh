#!/bin/sh
# build-rust.sh BUILD_DIR NAME OUTPUT.so CARGO ARGUMENT…: runs cargo, and copies the cdylib NAME from its folder to
# OUTPUT.so, with a list of its sources for the build system beside the folder.
set -eu
build_dir=$1 name=$(echo "$2" | tr - _) output=$3
shift 3
"$@"
built=$build_dir/release/lib$name
mkdir -p "$(dirname "$output")"
cp "$built.so" "$output.part"
mv "$output.part" "$output"
# cargo's list has one line for each file that it built.
sed -n "s|^[^:]*\.so:|$output:|p" "$built.d" > "$build_dir/$(basename "$output" .so).d"
