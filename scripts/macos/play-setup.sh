#!/usr/bin/env bash
# Runs scripts/setup as a Mac would, as far as Linux can play one: its answers to uname, sw_vers, rustc and xcrun are
# made up, while MLX for macOS lies in the cache already. Checks what setup says and the configuration that it writes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$here/../lib/common.sh"

work=$(mktemp -d "${TMPDIR:-/tmp}/daisy-mac.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/clone"
cp -R "$DAISY_ROOT/scripts" "$DAISY_ROOT/Cargo.lock" "$work/clone"

# answer PROGRAM SCRIPT : what the program says on the Mac.
answer() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# shellcheck disable=SC2016 # for the program's own shell
{
  answer uname 'case $1 in -s) echo Darwin ;; -m) echo ${MAC_ARCH:-arm64} ;; esac'
  answer sw_vers 'echo ${MAC_VERSION:-14.7.1}'
  answer rustc 'echo host: ${MAC_HOST:-aarch64-apple-darwin}'
  answer cargo 'exit 1'
  answer xcrun 'exit ${MAC_XCRUN:-0}'
}

# setup VARIABLE... : with these answers; prints what setup says.
setup() { env "$@" CI='' DAISY_CACHE="$DAISY_CACHE" PATH="$work/bin:$PATH" "$work/clone/scripts/setup" 2>&1; }
# expect TEXT WHERE CONTENT
expect() {
  case $3 in
    *"$1"*) ;;
    *) fail "$2 lacks: $1" "it is: $3" ;;
  esac
}
refuses() {
  local text=$1 said
  shift
  if said=$(setup "$@"); then fail "setup accepted $*" "$said"; fi
  expect "$text" "what setup says with $*" "$said"
}

refuses "MLX needs macOS 14 or later, this Mac has 13.6" MAC_VERSION=13.6
refuses "MLX needs Apple silicon" MAC_ARCH=x86_64
refuses "rustup default stable-aarch64-apple-darwin" MAC_HOST=x86_64-apple-darwin
refuses "xcode-select --install" MAC_XCRUN=1
for pair in 14.0=14 14.8.1=14 15.0=15 15.7.2=15 26.0=15 26.1=15 26.0.1=15 26.2=26 26.4.1=26 26.10=26 27.0=26 13.7= 12=; do
  [ "$(mlx_platform_of "${pair%=*}")" = "${pair#*=}" ] || [ "$(mlx_platform_of "${pair%=*}")" = "macos-${pair#*=}" ] ||
    fail "macOS ${pair%=*} got $(mlx_platform_of "${pair%=*}")" "it takes macos-${pair#*=}"
done

mlx=$(mlx_dir_of macos-14)
expect "ready: MLX $MLX_VERSION for macos-14, in $mlx" "what setup says" "$(setup)"
config=$(cat "$work/clone/.cargo/config.toml")
for line in "[target.aarch64-apple-darwin.mlx]" "link-arg=-Wl,-rpath,$mlx/mlx/lib" "native=$mlx/mlx/lib" "dylib=c++" \
  "OUT_DIR = \"$mlx/out\"" 'MACOSX_DEPLOYMENT_TARGET = "14.0"'; do
  expect "$line" "what setup wrote" "$config"
done
case $config in *linux*) fail "what setup wrote on a Mac speaks of Linux" "$config" ;; esac
for file in mlx/lib/libmlx.dylib mlx/lib/mlx.metallib lib/libmlxc.a lib/libdaisy_mlx_compat.a out/bindings.rs; do
  [ -s "$mlx/$file" ] || fail "$mlx lacks $file" "scripts/mlx/build.sh makes it"
done
say "setup on a Mac: refusals, versions and configuration are right"
