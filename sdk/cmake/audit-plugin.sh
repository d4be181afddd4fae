#!/bin/sh
# audit-plugin.sh FILE.so TIER [READELF]: proves what a plugin may be before it is used. Deletes the file if it fails,
# so that a build cannot go on with it.
file=$1 tier=$2 readelf=${3:-readelf}
[ -x "$readelf" ] || readelf=readelf
fail() {
  echo "plugin audit: $file: $1" >&2
  rm -f "$file"
  exit 1
}

symbols=$(LC_ALL=C "$readelf" --dyn-syms -W "$file") || fail "not readable by $readelf"
# Columns: Num: Value Size Type Bind Vis Ndx Name
exported=$(echo "$symbols" | awk '$1 ~ /^[0-9]+:$/ && $7 != "UND" && $5 != "LOCAL" { sub(/@.*/, "", $8); print $8 }' | sort)
[ "$exported" = chassis_plugin_entry_v1 ] ||
  fail "exports [$(echo $exported)], expected exactly chassis_plugin_entry_v1"
unique=$(echo "$symbols" | awk '$5 == "UNIQUE" && $7 != "UND" { print $8 }' | sort)
[ -z "$unique" ] || fail "has unique symbols [$(echo $unique)]; compile with -fno-gnu-unique"

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
path=$(LC_ALL=C "$readelf" -d -W "$file" | grep -E '\((RPATH|RUNPATH)\)')
[ -z "$torch" ] || [ -z "$path" ] || fail "needs LibTorch and has a library path, so it could load a second one:$path"

LC_ALL=C "$readelf" -S -W "$file" | grep -F ' .note.chassis ' | grep -q ' NOTE .* A ' ||
  fail "has no allocated .note.chassis section; CHASSIS_PLUGIN is missing in its sources"
