#!/usr/bin/env bash
# Runs the install script on machines that this one plays: its answers to uname, sw_vers, sysctl and getconf are made
# up, and so is the package. Checks what is refused, what is said, and what is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$here/../lib/common.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/daisy-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/tar" "$work/home"
cp "$here/install" "$work/tar"
# shellcheck disable=SC2016 # for the program's own shell
printf '#!/bin/sh\n[ -z "${BROKEN:-}" ] || { echo "dyld: Library not loaded"; exit 1; }\necho daisy 1.2.3\n' >"$work/tar/daisy"
chmod +x "$work/tar/daisy"

# answer PROGRAM SCRIPT : what the program says on that machine.
answer() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# shellcheck disable=SC2016 # for the program's own shell
{
  answer uname 'case $1 in -s) echo ${OS:-Darwin} ;; -m) echo ${ARCH:-arm64} ;; esac'
  answer sw_vers 'echo ${VERSION:-26.2}'
  answer sysctl 'echo ${SILICON:-1}'
  answer getconf '[ -n "$GLIBC" ] && echo glibc $GLIBC'
  answer xattr 'exit 0'
}

# package FACT... : what the tar says it is for.
package() { printf '%s\n' "$@" >"$work/tar/package"; }
install() {
  local environment=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do environment+=("$1") && shift; done
  [ $# = 0 ] || shift
  env -i HOME="$work/home" PATH="$work/bin:/usr/bin:/bin" "${environment[@]}" "$work/tar/install" "$@" 2>&1
}
refuses() {
  local text=$1 said
  shift
  if said=$(install "$@"); then fail "install accepted $*" "$said"; fi
  case $said in *"$text"*) ;; *) fail "with $* install says otherwise than: $text" "$said" ;; esac
  [ ! -e "$work/home/.local/lib/daisy.new" ] || fail "a refused install left files" "$said"
}

package os=macos arch=arm64 kind=metal oldest=26.2 "for=macOS 26.2 or later" "instead=take the one named macos15"
refuses "this package is for macOS 26.2 or later, this machine runs Linux with glibc 2.36" OS=Linux ARCH=aarch64 GLIBC=2.36
refuses "this package is for macOS 26.2 or later, this machine has macOS 26.1" VERSION=26.1
refuses "hint: take the one named macos15" VERSION=15.7.2
refuses "is for macOS 26.2 or later on arm64, this machine is x86_64" ARCH=x86_64 SILICON=0
refuses "unknown argument: --sudo" VERSION=26.2 -- --sudo
[ ! -e "$work/home/.local" ] || fail "a refused install left files" "$(find "$work/home")"

said=$(install VERSION=26.2 ARCH=x86_64 SILICON=1) || fail "Rosetta's shell is refused" "$said"
case $said in
  *"installed daisy 1.2.3 for macOS 26.2 or later"*"is not in PATH"*) ;;
  *) fail "install says otherwise" "$said" ;;
esac
[ "$("$work/home/.local/bin/daisy")" = "daisy 1.2.3" ] || fail "nothing is installed" "$said"
touch "$work/home/.local/lib/daisy/of-an-older-version"
install VERSION=26.4.1 >/dev/null
[ ! -e "$work/home/.local/lib/daisy/of-an-older-version" ] || fail "an older version's file is still there" "$work"
touch "$work/home/.local/lib/daisy/of-now"
refuses "this daisy does not start here: dyld: Library not loaded" BROKEN=1 VERSION=27.0
[ -e "$work/home/.local/lib/daisy/of-now" ] || fail "a daisy that does not start replaced one that does" "$work"
install VERSION=26.2 -- --prefix "$work/elsewhere" >/dev/null
[ -L "$work/elsewhere/bin/daisy" ] || fail "--prefix is not where it went" "$(find "$work")"

package os=linux arch=x86_64 kind=cuda oldest=2.35 "for=Linux with glibc 2.35 or later" "instead=a newer Linux" \
  "nvidia=nvidia-nccl-cu13==1" "libraries=libnccl.so.2"
refuses "this machine has Linux with glibc 2.31" OS=Linux ARCH=x86_64 GLIBC=2.31
refuses "pip install --no-deps --target $work/home/.local/lib/daisy-nvidia nvidia-nccl-cu13==1" OS=Linux ARCH=x86_64 GLIBC=2.36
site=$work/site-packages
mkdir -p "$site/nvidia/nccl/lib" "$site/nvidia/cu13/lib"
refuses "libnccl.so.2 is not in $site/nvidia" OS=Linux ARCH=x86_64 GLIBC=2.36 -- --nvidia "$site"
touch "$site/nvidia/nccl/lib/libnccl.so.2"
install OS=Linux ARCH=x86_64 GLIBC=2.36 -- --nvidia "$site" >/dev/null
for path in nccl/lib/libnccl.so.2 cu13 cuda_runtime; do
  [ -e "$work/home/.local/lib/daisy/nvidia/$path" ] || fail "NVIDIA's $path is not linked" "$(ls -l "$work/home/.local/lib/daisy/nvidia")"
done
say "install: refusals, sentences and what is installed are right"
