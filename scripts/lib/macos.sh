# shellcheck shell=bash
# The check of the workspace for macOS on a Linux machine. Sourced after common.sh (and, to check, build.sh).

readonly MACOS_TARGET=aarch64-apple-darwin

# Uses the functions one and skip of scripts/check.
check_for_macos() {
  local dir
  if ! is_bookworm; then
    skip "macos type-check" "needs Debian bookworm on x86-64"
    return 0
  fi
  dir=$(macos_dir)
  if [ ! -d "$dir" ]; then
    say "  making the toolchain for macOS (once, about two minutes; then the dependencies are checked, about five)"
    one "macos toolchain" "$DAISY_ROOT/scripts/macos/toolchain.sh" "$dir"
    [ -d "$dir" ] || return 0
  fi
  one "macos type-check and clippy" lint_for_macos "$dir"
}

is_bookworm() {
  [ "$DAISY_ARCH" = x86_64 ] && [ -r /etc/os-release ] &&
    (. /etc/os-release && [ "${ID:-}:${VERSION_CODENAME:-}" = debian:bookworm ])
}

# Where the toolchain is kept, by all that decides its content except Debian's updates: what is there stays good.
macos_dir() {
  local key
  key=$( (rust_version && cd "$DAISY_ROOT/scripts/macos" && cat cc toolchain.sh) | sha256sum | cut -c 1-10)
  echo "$DAISY_CACHE/macos-$key"
}

# The oldest compiler that the workspace takes.
rust_version() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$DAISY_ROOT/Cargo.toml"; }

# Clippy alone, for it reports what a check reports too.
#
# All clones share one target directory. It lies inside the toolchain, since metadata fits the very standard library
# that it was checked against. Cargo names a clone's crates by their place in the clone, and sees a change by the time
# of a file: to it, the files of another clone may seem checked already. So a lock is held, and where another clone
# came before, what cargo knows of our own crates is dropped.
lint_for_macos() (
  target=$1/target
  use_macos_toolchain "$1"
  cd "$DAISY_ROOT" && mkdir -p "$target" && exec 8>"$target/lock" && flock 8 || exit
  if [ "$(cat "$target/clone" 2>/dev/null)" != "$DAISY_ROOT" ]; then
    rm -rf "$target/$MACOS_TARGET"/debug/.fingerprint/daisy*
    echo "$DAISY_ROOT" >"$target/clone"
  fi
  # mlx-sys is told where Linux's declarations are, instead of building MLX. Never in .cargo/config.toml: on a Mac that
  # would keep MLX from being built at all. And only build scripts and macros come to run, too briefly to be optimised.
  "$1/usr/bin/cargo-clippy" clippy --locked --workspace --all-targets --target "$MACOS_TARGET" --target-dir "$target" \
    --config "target.$MACOS_TARGET.mlx.rustc-env.OUT_DIR = \"$(mlx_dir)/out\"" \
    --config 'profile.dev.package."*".opt-level = 0' -- -D warnings
)

# Lets cargo and rustc of the toolchain find one another, their libraries and the stand-ins.
use_macos_toolchain() {
  local suffix=${MACOS_TARGET//-/_}
  export CARGO=$1/usr/bin/cargo RUSTC=$1/usr/bin/rustc
  export LD_LIBRARY_PATH=$1/usr/lib/x86_64-linux-gnu:$1/lib/x86_64-linux-gnu
  export "CC_$suffix=$1/bin/cc" "CXX_$suffix=$1/bin/cc" "AR_$suffix=$1/bin/ar" "SDKROOT=$1/sdk"
}
