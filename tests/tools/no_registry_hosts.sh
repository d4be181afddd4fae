#!/bin/sh
# no_registry_hosts.sh TREE: no file names the host of a package registry or of a mirror. Which one serves a machine is
# that machine's to say: pip, apt and debootstrap know theirs.
tree=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Without their dots, so that this file names none.
hosts='pypi org|pythonhosted org|debian org|ubuntu com|crates io|npmjs org|npmjs com|yarnpkg com|anaconda org|
rubygems org|maven org|proxy golang org|pytorch org|download nvidia com|ghcr io|docker io|quay io'
pattern=$(printf '%s' "$hosts" | tr -d '\n' | sed 's/ /\\./g')
pattern="(^|[^[:alnum:]_])($pattern)([^[:alnum:]_]|\$)"
pattern="$pattern|[a-z]+://[^/[:space:]\"]*(mirror|registry|pypi|artifactory|nexus)"
list() {
  grep -rIinE --exclude-dir=.git --exclude-dir=.deps --exclude-dir=build "$pattern" "$1"
}
# It finds what it is to find.
mkdir "$scratch/tree"
for host in $(printf '%s' "$hosts" | tr -d '\n' | tr ' |' '. '); do
  echo "index: https://files.$host/x" > "$scratch/tree/$host"
done
printf 'deb http://%s.example/x\n' mirror > "$scratch/tree/mirror"
found=$(list "$scratch/tree" | wc -l) expected=$(ls "$scratch/tree" | wc -l)
[ "$found" = "$expected" ] || { echo "$found of $expected hosts are found"; exit 1; }
if list "$tree"; then
  echo "these lines name the host of a registry; leave it to the machine's own settings"
  exit 1
fi
