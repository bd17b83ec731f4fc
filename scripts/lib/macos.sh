# shellcheck shell=bash
# Building for macOS on a Linux machine, and the check of it. Sourced after common.sh and linux.sh.

readonly MACOS_TARGET=aarch64-apple-darwin
readonly MACOS_OLDEST=14.0
readonly MACOS_SYMBOLS=$DAISY_ROOT/scripts/macos/apple-symbols.txt

# Uses the functions one and skip of scripts/check.
check_for_macos() {
  local binary mlx
  if ! is_bookworm; then
    skip "macos" "needs Debian bookworm on x86-64"
    return 0
  fi
  [ -d "$(macos_dir)" ] || say "  making the toolchain for macOS (once, about four minutes; then all is built, about seven)"
  one "macos toolchain and MLX" prepare_for_macos
  mlx=$(mlx_dir_of macos-14)/mlx/lib
  [ -d "$mlx" ] || return 0
  one "macos clippy, and every program links" build_all_for_macos
  binary=$(macos_dir)/target/$MACOS_TARGET/debug/daisy
  [ -e "$binary" ] || return 0
  one "macos names" python3 scripts/macos/symbols.py --oldest "$MACOS_OLDEST" "$MACOS_SYMBOLS" "$binary" "$mlx/libmlx.dylib"
  one "macos names: foreign ones are refused" foreign_names_are_refused "$binary" "$mlx"
  one "setup, on a Mac that Linux plays" scripts/macos/play-setup.sh
}

# The toolchain, and MLX for the oldest macOS, which all that is built for macOS links with. A shell of its own, with
# which the lock on the cache ends.
prepare_for_macos() (
  toolchain=$(macos_dir) mlx=$(mlx_dir_of macos-14)
  [ -d "$toolchain" ] || "$DAISY_ROOT/scripts/macos/toolchain.sh" "$toolchain" || exit
  [ ! -d "$mlx" ] || exit 0
  install_packages fetching
  lock_cache
  [ -d "$mlx" ] || CXX=$toolchain/bin/c++ AR=$toolchain/bin/ar "$DAISY_ROOT/scripts/mlx/build.sh" "$mlx" macos-14
)

# Every target, tests too, so that nothing is compiled twice: once built, the dependencies serve for linting and linking
# alike. Clippy's driver is the compiler of our own crates, and stops at a warning.
build_all_for_macos() {
  RUSTC_WORKSPACE_WRAPPER=$(macos_dir)/usr/bin/clippy-driver CLIPPY_ARGS=-Dwarnings \
    macos_cargo build --workspace --all-targets
}

# The check must be able to fail: by a name that the list lacks, and, with another library in its place, by all that is
# taken from MLX.
foreign_names_are_refused() {
  local list name said
  list=$(mktemp "${TMPDIR:-/tmp}/daisy-names.XXXXXX")
  for name in _malloc _getaddrinfo ___cxa_throw; do
    grep -vx -- "$name" "$MACOS_SYMBOLS" >"$list"
    if said=$(python3 scripts/macos/symbols.py "$list" "$1" "$2/libmlx.dylib"); then
      fail "without $name in the list nothing is found" "$said"
    fi
    [ "$said" = "$name: it is not in scripts/macos/apple-symbols.txt under $(library_of "$name")" ] ||
      fail "without $name in the list something else is found" "$said"
  done
  rm "$list"
  if said=$(python3 scripts/macos/symbols.py "$MACOS_SYMBOLS" "$1" "$2/libjaccl.dylib"); then
    fail "without MLX nothing is found" "$said"
  fi
  grep -q '^__ZN3mlx4core.*it is taken from @rpath/libmlx.dylib' <<<"$said"
}

# The library that the list has a name under.
library_of() { awk -v name="$1" '/^\// {library = $0} $0 == name {print library}' "$MACOS_SYMBOLS"; }

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

# macos_cargo COMMAND ARGUMENT... : cargo of the toolchain, for macOS.
#
# All clones share one target directory. It lies inside the toolchain, since what is compiled fits the very standard
# library that it was compiled against. Cargo names a clone's crates by their place in the clone, and sees a change by
# the time of a file: to it, the files of another clone may seem built already. So a lock is held, and where another
# clone came before, what cargo knows of our own crates is dropped.
macos_cargo() (
  toolchain=$(macos_dir) mlx=$(mlx_dir_of macos-14) command=$1 key=target.$MACOS_TARGET.mlx
  target=$toolchain/target
  shift
  use_macos_toolchain "$toolchain"
  cd "$DAISY_ROOT" && mkdir -p "$target" && exec 8>"$target/lock" && flock 8 || exit
  if [ "$(cat "$target/clone" 2>/dev/null)" != "$DAISY_ROOT" ]; then
    rm -rf "$target/$MACOS_TARGET"/*/.fingerprint/daisy*
    echo "$DAISY_ROOT" >"$target/clone"
  fi
  # Here and not in .cargo/config.toml, which is this machine's. The sources of crates are called the same wherever they
  # lie. What is built to be checked alone need not be fast, and debuggers do not come to it.
  "$CARGO" --config "target.$MACOS_TARGET.rustflags = ['--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo']" \
    --config "$key.rustc-env.OUT_DIR = '$mlx/out'" \
    --config "$key.rustc-link-search = ['native=$mlx/lib', 'native=$mlx/mlx/lib']" \
    --config "$key.rustc-link-lib = ['static=mlxc', 'static=daisy_mlx_compat', 'dylib=mlx', 'dylib=c++']" \
    --config 'profile.dev.package."*".opt-level = 0' --config 'profile.dev.debug = false' \
    --config 'profile.dev.strip = "none"' --config 'profile.release.strip = "none"' \
    "$command" --locked --target "$MACOS_TARGET" --target-dir "$target" "$@"
)

# Lets cargo and rustc of the toolchain find one another, their libraries, and zig.
use_macos_toolchain() {
  local suffix=${MACOS_TARGET//-/_} linker=CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER
  export CARGO=$1/usr/bin/cargo RUSTC=$1/usr/bin/rustc
  export LD_LIBRARY_PATH=$1/usr/lib/x86_64-linux-gnu:$1/lib/x86_64-linux-gnu
  export "CC_$suffix=$1/bin/cc" "CXX_$suffix=$1/bin/c++" "AR_$suffix=$1/bin/ar" "$linker=$1/bin/cc"
  # No SDK lies there, but what is named is then not searched for.
  export SDKROOT=$1/sdk MACOSX_DEPLOYMENT_TARGET=$MACOS_OLDEST
  DAISY_APPLE_STUBS=$1/stubs-$(cksum <"$MACOS_SYMBOLS" | cut -d ' ' -f 1)
  export DAISY_APPLE_STUBS
  [ -d "$DAISY_APPLE_STUBS" ] || python3 "$DAISY_ROOT/scripts/macos/stubs.py" "$MACOS_SYMBOLS" "$DAISY_APPLE_STUBS"
}
