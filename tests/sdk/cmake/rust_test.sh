#!/bin/sh
# chassis_add_rust_plugin(): cargo runs only if sources changed, the audit's findings end the build, and a plugin that
# cannot be built is left out by name.
#   rust_test.sh TREE CMAKE CARGO
set -eu
tree=$1 cmake=$2 cargo=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$1; the output was:"; tail -30 "$scratch/log"; exit 1; }
says() { grep -qF -- "$1" "$scratch/log" || fail "not said: $1"; }

mkdir "$scratch/src"
cp "$tree/sdk/examples/tokenizer_rust/words.rs" "$tree/sdk/examples/tokenizer_rust/Cargo.lock" "$scratch/src"
sed "s|\.\./\.\./rust|$tree/sdk/rust|" "$tree/sdk/examples/tokenizer_rust/Cargo.toml" > "$scratch/src/Cargo.toml"
cat > "$scratch/src/CMakeLists.txt" << END
cmake_minimum_required(VERSION 3.25)
project(words LANGUAGES NONE)
include("$tree/sdk/cmake/ChassisRust.cmake")
chassis_add_rust_plugin(words KINDS \${KINDS} VERSION \${VERSION})
END
configure() {
  "$cmake" -G Ninja -S "$scratch/src" -B "$scratch/build" -DKINDS=tokenizer -DVERSION=0.1.0 "$@" > "$scratch/log" 2>&1
}
build() { "$cmake" --build "$scratch/build" > "$scratch/log" 2>&1; }
PATH=$(dirname "$cargo"):$PATH

configure || fail "it is not configured"
build && [ -e "$scratch/build/words.so" ] || fail "it is not built"
build || fail "it is not built again"
says "no work to do"
sleep 0.01
echo '// more' >> "$scratch/src/words.rs"
build || fail "a changed source is not built"
says "Building the Rust plugin words.so"

cp "$scratch/src/words.rs" "$scratch/words.rs"
echo '#[no_mangle] pub extern "C" fn other() {}' >> "$scratch/src/words.rs"
! build && [ ! -e "$scratch/build/words.so" ] || fail "two exported symbols are accepted"
says "exports [chassis_plugin_entry_v1 other]"
cp "$scratch/words.rs" "$scratch/src/words.rs"
configure -DKINDS=ops && ! build || fail "a wrong kind is accepted"
says "members of the kinds tokenizer"
configure -DVERSION=0.2.0 && ! build || fail "a wrong version is accepted"
says "has VERSION 0.2.0"

configure -DCHASSIS_RUST=OFF || fail "it is not configured without Rust"
says "plugin words is left out: CHASSIS_RUST is OFF"
printf '\n[[package]]\nname = "x"\nversion = "1.0.0"\nsource = "registry+x"\n' >> "$scratch/src/Cargo.lock"
configure -DCHASSIS_RUST=AUTO -DCHASSIS_CARGO_VENDOR=/nowhere || fail "it is not configured without crates"
says "plugin words is left out: its crates are not in /nowhere"
! configure -DCHASSIS_RUST=ON || fail "CHASSIS_RUST=ON leaves it out"
rm "$scratch/src/Cargo.lock"
configure -DCHASSIS_RUST=AUTO || fail "it is not configured without a lock file"
says "has no Cargo.lock"
[ ! -x /usr/bin/cargo ] || exit 0   # Debian's cargo is used if that of the PATH is too old
mkdir "$scratch/old"
printf '#!/bin/sh\necho rustc 1.63.0\n' > "$scratch/old/rustc"
chmod +x "$scratch/old/rustc"
cp "$scratch/old/rustc" "$scratch/old/cargo"
PATH=$scratch/old:$PATH
rm -r "$scratch/build"
configure || fail "it is not configured with an old compiler"
says "is too old or does not run (rustc 1.63.0)"
