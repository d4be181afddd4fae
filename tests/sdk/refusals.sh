#!/bin/sh
# A run with a broken plugin fails with the expected exit code and message.
#   refusals.sh CHASSIS FIXTURE_DIR EXAMPLE_DIR
set -u
chassis=$1 fixtures=$2 examples=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. "$(dirname "$0")/tiny_run.sh"
failed=0

# refuse DEFECT EXIT_CODE TEXT
refuse() {
  mkdir "$scratch/$1"
  cp -p "$fixtures/broken_$1.so" "$scratch/$1/"
  "$chassis" train "$scratch/run.toml" "run.output_dir=$scratch/out-$1" "kernels.plugins=[\"broken_$1\", \"aten\"]" \
    --plugin-path "$scratch/$1" > "$scratch/log" 2>&1
  code=$?
  if [ $code -ne "$2" ] || ! grep -qF -- "$3" "$scratch/log"; then
    echo "broken_$1: exit code $code, expected $2 and the text: $3"
    tail -5 "$scratch/log"
    failed=1
  fi
}

refuse abi_major 3 "was built for ABI 9."
refuse no_note 3 "has no manifest note"
refuse missing_service 3 "requires the service chassis.teleport/1, which this host"
refuse changed_schema 3 'expects "aten::mm(Tensor self, Tensor mat2, bool fast) -> Tensor", this LibTorch has "aten::mm('
refuse unknown_operator 3 "calls operator aten::no_such_operator, which this LibTorch does not have"
refuse entry_throws 3 "the entry threw"
refuse create_fails 2 "this member always refuses its options"
refuse create_throws 3 "create threw"
refuse world_writable 3 "is writable by everyone"
refuse forward_fails 3 "the kernel gave up"
refuse forward_throws 3 "an exception of unknown type"
# A panic in Rust is an error that names the plugin; the process goes on to the end of its own error path.
if [ -e "$examples/rust_probe.so" ]; then
  "$chassis" train "$scratch/run.toml" "run.output_dir=$scratch/out-rust" tokenizer.plugin=rust_probe \
    tokenizer.panics_in=open --plugin-path "$examples" > "$scratch/log" 2>&1
  code=$?
  if [ $code -ne 3 ] || ! grep -q "plugin 'rust_probe' .*panicked at .*probe.rs:[0-9:]*: open was told to panic" "$scratch/log"; then
    echo "rust_probe: exit code $code, expected 3 and a message about a panic"
    tail -5 "$scratch/log"
    failed=1
  fi
fi
exit $failed
