#!/bin/sh
# audit-plugin.sh [--delete] FILE.so TIER [READELF [KINDS [VERSION]]]: checks that a library follows the rules for
# plugins. KINDS (as in "ops,model") and VERSION, if not empty, are compared with its manifest. With --delete, which
# builds use, a file that fails is removed, so that the build cannot continue with it.
delete=
[ "$1" != --delete ] || { delete=1; shift; }
file=$1 tier=$2 readelf=${3:-readelf} kinds=$4 version=$5
[ -x "$readelf" ] || readelf=readelf
fail() {
  echo "plugin audit: $file: $1" >&2
  [ -z "$delete" ] || rm -f "$file"
  exit 1
}

# The advice depends on the language that the library was compiled from.
compilers=$(LC_ALL=C "$readelf" -p .comment "$file" 2>/dev/null)
case $compilers in
  *"rustc version"*)
    export_advice='build a cdylib with one #[no_mangle] pub extern "C" function of that name'
    unique_advice='link C++ parts with -fno-gnu-unique'
    note_advice='it needs a #[used] static with #[link_section = ".note.chassis"], as chassis/plugin.h describes' ;;
  *)
    export_advice='link with a version script, as chassis_add_plugin() does'
    unique_advice='compile with -fno-gnu-unique'
    note_advice='CHASSIS_PLUGIN (C++) or CHASSIS_MANIFEST (C) is missing in its sources' ;;
esac

symbols=$(LC_ALL=C "$readelf" --dyn-syms -W "$file") || fail "$readelf cannot read it"
# Columns: Num: Value Size Type Bind Vis Ndx Name
exported=$(echo "$symbols" |
  awk '$1 ~ /^[0-9]+:$/ && $7 != "UND" && $5 != "LOCAL" { sub(/@.*/, "", $8); print $8 }' | sort)
[ "$exported" = chassis_plugin_entry_v1 ] ||
  fail "exports [$(echo $exported)], expected exactly chassis_plugin_entry_v1; $export_advice"
unique=$(echo "$symbols" | awk '$5 == "UNIQUE" && $7 != "UND" { print $8 }' | sort)
[ -z "$unique" ] || fail "has unique symbols [$(echo $unique)]; $unique_advice"

undefined=$(echo "$symbols" | awk '$1 ~ /^[0-9]+:$/ && $7 == "UND" && $8 != "" { sub(/@.*/, "", $8); print $8 }' | sort)
shim=$(echo "$undefined" | grep -E '^(aoti_torch_|torch_)' | head -5)
# Mangled names in the namespaces at, c10, torch and caffe2.
mangled=$(echo "$undefined" | grep -E '^_Z(N|NK|TI|TV|TS|TIN|TVN|TSN|GVN)?(2at|3c10|5torch|6caffe2)' | head -5)
needed=$(LC_ALL=C "$readelf" -d -W "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
torch=$(echo "$needed" | grep -E '^lib(torch|c10)')
case $tier in
  T0) [ -z "$shim$mangled" ] || fail "is T0 but uses LibTorch: [$(echo $shim $mangled)]; declare TIER T1 or T2"
      [ -z "$torch" ] || fail "is T0 but needs [$(echo $torch)]" ;;
  T1) [ -z "$mangled" ] || fail "is T1 but uses LibTorch's C++ API: [$(echo $mangled)]; declare TIER T2" ;;
  T2) ;;
  *) fail "tier $tier is unknown" ;;
esac
openmp=$(echo "$needed" | grep -E '^lib(gomp|omp|iomp)')
[ -z "$openmp" ] || [ "$tier" != T0 ] ||
  fail "needs [$openmp]; a T0 plugin asks the host for threads instead of bringing OpenMP"
path=$(LC_ALL=C "$readelf" -d -W "$file" | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\].*/\2/p')
[ -z "$torch" ] || [ -z "$path" ] || fail "needs LibTorch and has a library path, so it could load a second one: $path"
# An empty entry is the working directory, a relative one a folder in it: anyone who can write there chooses the code.
[ -z "$path" ] || case ":$path:" in
  *::*) fail "its library path '$path' has an empty entry, which is the working directory" ;;
esac
relative=$(echo "$path" | tr : '\n' | grep -v -E '^(/|\$ORIGIN|\$\{ORIGIN\}|$)')
[ -z "$relative" ] ||
  fail "its library path '$path' has the relative entry [$(echo $relative)]; begin it with / or \$ORIGIN"

# Columns behind "[Nr]": Name Type Address Off Size ES Flg Lk Inf Al. Flags contain A; others depend on the compiler.
section=$(LC_ALL=C "$readelf" -S -W "$file" | sed 's/^ *\[ *[0-9]*\] *//' |
  awk '$1 == ".note.chassis" && $2 == "NOTE" && $7 ~ /A/ { print $4, $5; exit }')
[ -n "$section" ] || fail "has no allocated .note.chassis section: $note_advice"
# The manifest follows 20 bytes of header and name.
manifest=$(tail -c +$((0x${section% *} + 21)) "$file" | head -c $((0x${section#* } - 20)) | tr '\0' '\n')
value() { printf '%s\n' "$manifest" | LC_ALL=C sed -n "s|^$1=||p"; }

name=$(basename "$file" .so) note_id=$(value id) note_version=$(value version)
[ "$note_id" = "$name" ] ||
  fail "its manifest has the id '$note_id', expected '$name', the name of the file; CHASSIS_PLUGIN_ID holds that name"
printf '%s\n' "$note_version" | LC_ALL=C grep -q -x -E '[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?' ||
  fail "its manifest has the version '$note_version', expected three numbers, as in 0.1.0 or 1.0.0-rc.1"
[ -z "$version" ] || [ "$version" = "$note_version" ] ||
  fail "CMake has VERSION $version for it, but its manifest has the version $note_version; CHASSIS_PLUGIN_VERSION holds\
 VERSION, and in Rust the version is that of Cargo.toml"
sorted() { tr ', ' '\n\n' | LC_ALL=C sort -u | sed '/^$/d' | tr '\n' ' ' | sed 's/ $//'; }
wanted=$(echo "$kinds" | sorted) found=$(value member | sed 's|/.*||' | sorted)
[ -z "$wanted" ] || [ "$wanted" = "$found" ] ||
  fail "CMake has KINDS $wanted for it, but its manifest has members of the kinds $found; correct KINDS"
