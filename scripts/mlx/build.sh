#!/usr/bin/env bash
# Makes the directory that a Linux build of mlx-rs links against: PyPI's MLX for the CPU, mlx-c and its Rust
# declarations. scripts/setup runs it once per machine and content of this directory.
#
# Usage: build.sh DIR (appears only when complete)
#   DIR/mlx/{lib,include}, DIR/mlx_cpu.libs      the wheel; its libmlx.so finds its BLAS by its own run path
#   DIR/lib/lib{mlxc,daisy_mlx_compat}.a         mlx-c, and what mlx-rs needs besides
#   DIR/out/bindings.rs                          for mlx-sys, as its build script's OUT_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$here/../lib/common.sh"

# PyPI's checksums of mlx-cpu 0.32.2, x86-64 and arm64.
readonly MLX_CPU_SHA256=(
  fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878
  d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b
)

main() {
  say "Building MLX $MLX_VERSION for $DAISY_ARCH (once, about two minutes)"
  step "fetch mlx-cpu from PyPI" fetch_mlx
  step "fetch mlx-sys from the Rust registry" fetch_mlx_sys
  mlx_sys=$(grep -o '"manifest_path":"[^"]*/mlx-sys-[^"]*/Cargo.toml"' "$tmp/metadata.json" | cut -d '"' -f 4)
  mlx_sys=${mlx_sys%/Cargo.toml}
  mlx_c=$mlx_sys/src/mlx-c
  step "compile mlx-c" compile_mlx_c
  step "write its Rust declarations" write_bindings
  mv -T "$made" "$1"
}

# step WHAT FUNCTION : one line for the reader, all output for the log. Bash ignores `set -e` in a function whose
# status is asked for, so the functions chain their commands with &&.
step() {
  local start=$SECONDS
  printf '  %s … ' "$1" >&2
  if ! "$2" >>"$log" 2>&1; then
    printf 'failed\n' >&2
    tail -n 20 "$log" >&2
    fail "could not $1" "all output is in $log"
  fi
  printf '%d s\n' $((SECONDS - start)) >&2
}

fetch_mlx() {
  download_wheel "$made" "manylinux_2_35_$DAISY_ARCH" "mlx-cpu==$MLX_VERSION" "${MLX_CPU_SHA256[@]}"
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
    "-ffile-prefix-map=$mlx_c=mlx-c" # error messages name the source file
  )
  printf '#include "%s"\n' "$here/format.h" mlx/mlx.h >"$tmp/all.h" &&
    g++ "${flags[@]}" -x c++-header "$tmp/all.h" -o "$tmp/all.h.gch" &&
    mkdir "$tmp/objects" "$made/lib" &&
    cd "$tmp/objects" &&
    printf '%s\0' "$mlx_c"/mlx/c/*.cpp "$here/compat.cpp" |
    xargs -0 -n 1 -P "$(nproc)" g++ "${flags[@]}" -include "$tmp/all.h" -c &&
    ar rcs "$made/lib/libdaisy_mlx_compat.a" compat.o &&
    rm compat.o &&
    ar rcs "$made/lib/libmlxc.a" ./*.o
}

# The tool's target directory is kept: the next version of MLX needs it again.
write_bindings() {
  mkdir "$made/out" && cd "$tmp" &&
    MLX_SYS_DIR=$mlx_sys cargo run --locked --quiet --manifest-path "$here/bindgen/Cargo.toml" \
      --target-dir "$DAISY_CACHE/bindgen-target" -- "$mlx_c" "$made/out/bindings.rs"
}

log=$DAISY_CACHE/mlx-build.log
: >"$log"
tmp=$(mktemp -d "$DAISY_CACHE/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
made=$tmp/made
main "$@"
