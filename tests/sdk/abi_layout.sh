#!/bin/sh
# Size and offsets of every struct that crosses, and every constant, as the compiler sees them. Compares them with
# abi_layout.txt beside this script; --update rewrites that file, which is a change of the ABI.
#   abi_layout.sh INCLUDE_DIR COMPILER c11|c++20 [--update]
set -eu
include=$1 compiler=$2 standard=$3
golden=$(dirname "$0")/abi_layout.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case $standard in c++*) language=c++ ;; *) language=c ;; esac
compile() { "$compiler" -x $language -std=$standard "-I$include" "$@"; }

(cd "$include" && find chassis -name '*.h' | LC_ALL=C sort) | sed 's/.*/#include "&"/' > "$scratch/all.h"
{
  cat "$scratch/all.h"
  cat << 'END'
#include <stdio.h>
#define S(type) printf("%s %zu\n", #type, sizeof(type));
#define F(type, field) printf("  %s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type*)0)->field));
#define N(name) printf("%s %lld\n", #name, (long long)(name));
#define T(name) printf("%s \"%s\"\n", #name, name);
int main(void) {
END
  # Structs: typedef struct NAME { members } NAME_t;
  compile -E -P "$scratch/all.h" | tr '\n' ' ' | sed 's/typedef struct/\n&/g' |
    sed -n 's/^typedef struct \(chassis_[a-z0-9_]*\) {/\1 /p' | awk '
    {
      type = $1 "_t"; body = substr($0, length($1) + 1); depth = 0; member = ""
      print "S(" type ")"
      for (i = 1; i <= length(body); ++i) {
        c = substr(body, i, 1)
        if (c == "}" && depth == 0) break
        if (c == "{" || c == "(") ++depth
        if (c == "}" || c == ")") --depth
        if (c != ";" || depth > 0) { member = member c; continue }
        if (match(member, /\( *\* *[a-z_0-9]+ *\)/)) name = substr(member, RSTART, RLENGTH)
        else { name = member; sub(/\[.*/, "", name); sub(/ *$/, "", name); sub(/.*[^a-z_0-9]/, "", name) }
        gsub(/[^a-z_0-9]/, "", name)
        print "F(" type ", " name ")"
        member = ""
      }
    }'
  # Constants.
  (cd "$include" && find chassis -name '*.h' | LC_ALL=C sort | xargs sed -n 's/^#define \(CHASSIS_[A-Z0-9_]*\)  *\([^ ].*\)/\1 \2/p') |
    awk '$2 ~ /^[-0-9]/ { print "N(" $1 ")" } $2 ~ /^"/ { print "T(" $1 ")" }'
  echo 'return 0; }'
} > "$scratch/layout.c"
compile "$scratch/layout.c" -o "$scratch/layout"
"$scratch/layout" > "$scratch/layout.txt"
[ "$(grep -c '^chassis_' "$scratch/layout.txt")" -ge 30 ] || { echo "abi_layout: found too few structs" >&2; exit 1; }

if [ "${4:-}" = --update ]; then
  cp "$scratch/layout.txt" "$golden"
elif ! diff -u "$golden" "$scratch/layout.txt" > "$scratch/diff"; then
  echo "The ABI differs from $golden (struct size; struct.field offset size; constant value):"
  sed 1,2d "$scratch/diff"
  echo "Structs only grow at their end (see chassis/abi.h). If the change is meant: $0 $include $compiler $standard --update"
  exit 1
fi
