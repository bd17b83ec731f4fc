#!/usr/bin/env bash
# Makes a Rust toolchain that lints, builds and links for macOS on Debian bookworm (x86-64), where rustup would bring
# the target's standard library but perhaps cannot be reached: Debian's own Rust for web browsers, kept fresh as a
# security update, knows the target, and its standard library is built here from Debian's sources. PyPI's zig is the
# C compiler and the linker.
#
# Usage: toolchain.sh DIR (appears only when complete)
#   DIR/usr                   Debian's packages, unpacked; nothing is installed, and rustup's toolchains are left alone
#   DIR/usr/lib/rustlib/$MACOS_TARGET/lib   the standard library
#   DIR/zig, DIR/bin/{cc,c++,ar}   zig, and what calls it, see the file cc
#   DIR/sdk                   empty: what is named as Apple's SDK is then not searched for
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$here/../lib/common.sh"
# shellcheck source-path=SCRIPTDIR source=../lib/macos.sh
. "$here/../lib/macos.sh"

# PyPI's checksum of ziglang 0.17.1 for x86-64.
readonly ZIG_SHA256=ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
readonly PACKAGES=(rustc-web cargo-web rust-web-clippy rust-web-src)

main() {
  local dir=$1
  lock_cache
  [ ! -d "$dir" ] || return 0
  tmp=$(mktemp -d "$DAISY_CACHE/tmp.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  made=$tmp/made
  fetch_packages
  unpack_packages
  add_zig
  mkdir "$made/sdk"
  try_tools
  build_std
  rm -rf "$made/usr/src" "$made/usr/lib/rustlib/src"
  mv -T "$made" "$dir"
}

# apt with a state of its own: it needs no root, and takes nothing for installed. So what it resolves does not depend
# on this machine, and a cache that outlives the machine (a container) goes on working in the next.
apt() {
  local command=$1
  shift
  "$command" -qq -o Dir::State="$tmp/apt" -o Dir::State::Lists="$tmp/apt/lists" -o Dir::State::status="$tmp/apt/status" \
    -o Dir::Cache="$tmp/apt/cache" -o Debug::NoLocking=true -o APT::Sandbox::User=root "$@"
}

fetch_packages() {
  local version needed packages
  mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/cache/archives/partial" "$tmp/debs"
  : >"$tmp/apt/status"
  apt apt-get update || fail "apt-get could not read its sources" "is the network there? apt's reason stands above"
  version=$(apt apt-cache show --no-all-versions rustc-web 2>/dev/null | sed -n 's/^Version: //p') || true
  needed=$(rust_version)
  dpkg --compare-versions "${version:-0}" ge "$needed" ||
    fail "the workspace needs Rust $needed, and apt's sources have rustc-web ${version:-not at all}" \
      "is the network there? what apt says stands above" \
      "do apt's sources name bookworm-security, as a fresh Debian's do?"

  # What scripts/setup installs to link with is there anyway: a compiler and all below it.
  packages=$(comm -23 <(closure "${PACKAGES[@]}") <(closure g++ apt))
  [ -n "$packages" ] || fail "apt cannot resolve ${PACKAGES[*]}" "see what it says to: apt-get install --simulate ${PACKAGES[*]}"
  # shellcheck disable=SC2086 # names, one a line
  (cd "$tmp/debs" && apt apt-get download $packages) ||
    fail "could not fetch Debian's packages" "is the network there? apt's reason stands above; run it again"
}

# The names of packages with all that they depend on.
closure() { apt apt-get --simulate --no-install-recommends install "$@" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | LC_ALL=C sort; }

# Of rust-web-src, the sources of the compiler itself are 9 of 10 files.
unpack_packages() {
  local package
  mkdir "$made"
  for package in "$tmp"/debs/*.deb; do
    case ${package##*/} in
      rust-web-src_*)
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$made" --wildcards './usr/lib/rustlib/*' './usr/src/*/library/*'
        ;;
      *) dpkg-deb -x "$package" "$made" ;;
    esac
  done
  rm -r "$tmp/debs" "${made:?}/usr/share"
}

# Of its 400 MB, most are the headers of other systems.
add_zig() {
  mkdir "$made/bin"
  download_wheel "$tmp/wheel" manylinux_2_12_x86_64 ziglang==0.17.1 "$ZIG_SHA256" ||
    fail "could not fetch zig from PyPI" "is the network there? what is above is pip's reason; run it again"
  mv "$tmp/wheel/ziglang" "$made/zig"
  chmod +x "$made/zig/zig"
  find "$made/zig/lib/libc" -mindepth 1 -maxdepth 1 ! -name include ! -name darwin -exec rm -r {} +
  find "$made/zig/lib/libc/include" -mindepth 1 -maxdepth 1 ! -name any-darwin-any -exec rm -r {} +
  rm -rf "$made/zig/lib/docs" "$made/zig/lib/libtsan"
  cp "$here/cc" "$made/bin/cc"
  ln -s cc "$made/bin/c++"
  ln -s cc "$made/bin/ar"
}

try_tools() {
  local tool
  use_macos_toolchain "$made"
  for tool in rustc cargo cargo-clippy clippy-driver; do
    "$made/usr/bin/$tool" --version || fail "Debian's $tool does not run on this machine" "the loader's reason stands above"
  done
}

# Outside the clone, whose configuration is not for this. RUSTC_BOOTSTRAP lets a stable compiler take the -Z option,
# here alone. Panics name their place in the sources, which must not be that of this run.
build_std() {
  local std=$tmp/std lib=$made/usr/lib/rustlib/$MACOS_TARGET/lib
  mkdir -p "$std/src" "$lib"
  : >"$std/src/lib.rs"
  printf '[package]\nname = "empty"\nedition = "2024"\n' >"$std/Cargo.toml"
  (cd "$std" && RUSTC_BOOTSTRAP=1 "$CARGO" build --quiet --release --target "$MACOS_TARGET" --target-dir "$std/target" \
    --config "target.$MACOS_TARGET.rustflags = ['--remap-path-prefix=$made/usr/lib/rustlib/src/rust=rust']" \
    -Z build-std=std,panic_unwind,proc_macro,test) ||
    fail "could not build Rust's standard library for $MACOS_TARGET" "cargo's reason stands above; run it again"
  cp "$std/target/$MACOS_TARGET"/release/deps/lib*.rlib "$lib"
  rm "$lib"/libempty-*
}

main "$@"
