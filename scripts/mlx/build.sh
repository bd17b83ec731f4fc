#!/usr/bin/env bash
# Makes the directory that Daisy links against: PyPI's MLX, mlx-c compiled for it, and its Rust declarations.
# scripts/setup runs it once per machine and content of this directory.
#
# Usage: build.sh DIR PLATFORM (DIR appears only when complete)
#   PLATFORM    linux (MLX for the CPU of this machine), or macos-14, macos-15 or macos-26: Metal, from that version on
#   DIR/mlx/{lib,include}       the wheel; Linux: its libmlx.so finds its BLAS, in DIR/mlx_cpu.libs, by its own run path
#   DIR/lib/lib{mlxc,daisy_mlx_compat}.a   mlx-c, and what mlx-rs needs besides
#   DIR/out/bindings.rs         for mlx-sys, as its build script's OUT_DIR
# For Macs on another machine, CXX and AR name a compiler and an archiver.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$here/../lib/common.sh"
# shellcheck source-path=SCRIPTDIR source=wheels.sh
. "$here/wheels.sh"

main() {
  say "Building MLX $MLX_VERSION for $platform (once, about two minutes)"
  step "fetch MLX from PyPI" fetch_mlx "$platform" "$made"
  step "fetch mlx-sys from the Rust registry" fetch_mlx_sys
  mlx_sys=$(grep -o '"manifest_path":"[^"]*/mlx-sys-[^"]*/Cargo.toml"' "$tmp/metadata.json" | cut -d '"' -f 4)
  mlx_sys=${mlx_sys%/Cargo.toml}
  mlx_c=$mlx_sys/src/mlx-c
  step "compile mlx-c" compile_mlx_c
  step "write its Rust declarations" write_bindings
  mv "$made" "$1"
}

# step WHAT COMMAND... : one line for the reader, all output for the log. Bash ignores `set -e` in a function whose
# status is asked for, so the functions chain their commands with &&.
step() {
  local start=$SECONDS
  printf '  %s … ' "$1" >&2
  if ! "${@:2}" >>"$log" 2>&1; then
    printf 'failed\n' >&2
    tail -n 20 "$log" >&2
    fail "could not $1" "all output is in $log"
  fi
  printf '%d s\n' $((SECONDS - start)) >&2
}

# Started outside the clone, cargo does not read the clone's configuration, which is for linking with MLX.
fetch_mlx_sys() {
  cd "$tmp" && cargo metadata --locked --format-version 1 --manifest-path "$here/bindgen/Cargo.toml" >metadata.json
}

# Not by mlx-c's CMakeLists.txt: without it there is one tool less to install, and a precompiled header saves half
# of the time, for each of the 28 files reads all of MLX's headers.
compile_mlx_c() {
  local flags=(
    -std=c++20 -O1 -fPIC -I"$mlx_c" -I"$made/mlx/include"
    -DMLX_HALF_H # half.h, whose types exist on Arm only: see compat.cpp
    "-ffile-prefix-map=$mlx_c=mlx-c" # error messages name the source file,
    "-ffile-prefix-map=$made/mlx=mlx" # and no directory that was made to be removed
  )
  printf '#include "%s"\n' "$here/format.h" mlx/mlx.h >"$tmp/all.h" &&
    "$cxx" "${flags[@]}" -x c++-header "$tmp/all.h" -o "$tmp/all.h.gch" &&
    mkdir "$tmp/objects" "$made/lib" &&
    cd "$tmp/objects" &&
    printf '%s\0' "$mlx_c"/mlx/c/*.cpp "$here/compat.cpp" |
    xargs -0 -n 1 -P "$(getconf _NPROCESSORS_ONLN)" "$cxx" "${flags[@]}" -include "$tmp/all.h" -c &&
    "$ar" rcs "$made/lib/libdaisy_mlx_compat.a" compat.o &&
    rm compat.o &&
    "$ar" rcs "$made/lib/libmlxc.a" ./*.o
}

# The tool's target directory is kept: the next version of MLX needs it again. On Linux its own declarations serve for
# Macs, for mlx-c's headers say the same to both.
write_bindings() {
  if [ "$platform" != linux ] && [ "$DAISY_OS" = Linux ]; then
    cp -R "$(mlx_dir_of linux)/out" "$made/out"
    return
  fi
  mkdir "$made/out" && cd "$tmp" &&
    MLX_SYS_DIR=$mlx_sys cargo run --locked --quiet --manifest-path "$here/bindgen/Cargo.toml" \
      --target-dir "$DAISY_CACHE/bindgen-target" -- "$mlx_c" "$made/out/bindings.rs"
}

platform=$2
case $platform in
  linux) cxx=g++ ;;
  *) cxx=${CXX:-c++} ;;
esac
ar=${AR:-ar}
log=$DAISY_CACHE/mlx-build.log
: >"$log"
tmp=$(mktemp -d "$DAISY_CACHE/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
made=$tmp/made
main "$@"
