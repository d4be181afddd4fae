#!/bin/sh
# no_registry_hosts.sh TREE: no file names the host of a package registry or of a mirror. Each machine configures its
# own in pip, apt, cargo and debootstrap. Files that git ignores, such as Cargo.lock, may name one.
tree=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Written without dots, so that this file itself names no host.
hosts='pypi org|pythonhosted org|debian org|ubuntu com|crates io|npmjs org|npmjs com|yarnpkg com|anaconda org|
rubygems org|maven org|proxy golang org|pytorch org|download nvidia com|ghcr io|docker io|quay io'
pattern=$(printf '%s' "$hosts" | tr -d '\n' | sed 's/ /\\./g')
pattern="(^|[^[:alnum:]_])($pattern)([^[:alnum:]_]|\$)"
pattern="$pattern|[a-z]+://[^/[:space:]\"]*(mirror|registry|pypi|artifactory|nexus)"
list() {
  (cd "$1" && git grep --no-index --exclude-standard -IinE "$pattern")
}
# Self-test: every host and mirror is found.
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
