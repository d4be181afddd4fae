#!/bin/sh
# library_paths.sh BUILD CMAKE: no binary of the build tree or of an installed prefix has an empty or relative entry in its
# RUNPATH; such an entry would load libraries from the working directory.
build=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$cmake" --install "$build" --prefix "$scratch/prefix" > "$scratch/log" 2>&1 || { tail -5 "$scratch/log"; exit 1; }
seen=0 bad=0
list() {
  find "$build/bin" "$build/lib" "$build/tests" "$scratch/prefix" -type f \( -perm -u+x -o -name '*.so*' \)
}
list > "$scratch/files"
while read -r file; do
  path=$(LC_ALL=C readelf -d -W "$file" 2> /dev/null | sed -n 's/.*(R\(UN\)\{0,1\}PATH).*\[\(.*\)\].*/\2/p')
  seen=$((seen + 1))
  [ -n "$path" ] || continue
  case ":$path:" in *::*) echo "$file: '$path' has an empty entry"; bad=1 ;; esac
  for entry in $(echo "$path" | tr : ' '); do
    case $entry in /*|'$ORIGIN'*|'${ORIGIN}'*) ;; *) echo "$file: '$path' has the relative entry '$entry'"; bad=1 ;; esac
  done
done < "$scratch/files"
[ "$seen" -gt 10 ] || { echo "expected more than 10 binaries, found $seen"; exit 1; }
exit $bad
