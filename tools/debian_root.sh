# To be sourced with bash by checks that need a bare Debian; sets $root and settings. Needs root. DEBIAN_MIRROR chooses
# a mirror.

# open_root SUITE DIR [PACKAGE,…]: makes the chroot DIR/root with debootstrap, and mounts what programs need. The bare
# system is kept in DIR for the next time.
open_root() {
  local suite=$1 folder=$2 packages=${3:-} mirror=${DEBIAN_MIRROR:-}   # empty: debootstrap's default
  local base=$folder/$suite${packages:+-$packages}.tar
  [ "$(id -u)" = 0 ] || { echo "$(basename "$0"): a chroot needs root" >&2; exit 1; }
  command -v debootstrap > /dev/null || apt-get install -y -q --no-install-recommends debootstrap
  root=$folder/root
  mkdir -p "$folder"
  trap close_root EXIT
  close_root
  rm -rf --one-file-system "$root"
  if [ ! -e "$base" ]; then
    debootstrap --variant=minbase ${packages:+"--include=$packages"} "$suite" "$root" ${mirror:+"$mirror"} \
      > "$folder/debootstrap.log" 2>&1 || { tail -20 "$folder/debootstrap.log"; exit 1; }
    tar -C "$root" -cf "$base.part" .
    mv "$base.part" "$base"
  else
    mkdir -p "$root"
    tar -C "$root" -xf "$base"
  fi
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mount --bind /dev/pts "$root/dev/pts"
  echo "127.0.0.1 localhost" > "$root/etc/hosts"   # an installer writes this file, debootstrap does not
  # The network settings of this machine: name servers, and its certificates, if any.
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  settings=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TERM=dumb)
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/root/certificates.crt"
    settings+=(PIP_CERT=/root/certificates.crt CARGO_HTTP_CAINFO=/root/certificates.crt)
  fi
  local name
  for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
    [ -z "${!name:-}" ] || settings+=("$name=${!name}")
  done
}

close_root() { umount "$root/proc" "$root/dev/pts" "$root/dev" 2> /dev/null || true; }

# inside DIR COMMAND…: runs a command of bash in a folder of the chroot.
inside() {
  local folder=$1
  shift
  env -i "${settings[@]}" chroot "$root" bash -c "cd $folder && $*"
}
