# shellcheck shell=bash
# scripts/setup on a Mac: the command line tools, MLX for Metal, and cargo's configuration. Sourced after common.sh.
# shellcheck source-path=SCRIPTDIR source=cargo.sh
[ -n "${CONFIG_MARK:-}" ] || . "$DAISY_ROOT/scripts/lib/cargo.sh"

setup_mac() {
  local platform dir
  [ "$DAISY_ARCH" = aarch64 ] || fail "MLX needs Apple silicon, this Mac has $DAISY_ARCH" "use a Mac with an M1 or later"
  [ "$(rustc -vV | sed -n 's/^host: //p')" = aarch64-apple-darwin ] ||
    fail "Rust is installed for another processor" "rustup default stable-aarch64-apple-darwin"
  platform=$(mlx_platform)
  [ -n "$platform" ] || fail "MLX needs macOS 14 or later, this Mac has $(sw_vers -productVersion)" "update macOS"
  xcrun -f clang >/dev/null 2>&1 || fail "Apple's command line tools are missing" "xcode-select --install"
  python3 -m pip --version >/dev/null 2>&1 || fail "python3 or its pip is missing" "xcode-select --install"
  check_lock
  dir=$(mlx_dir)
  if [ ! -d "$dir" ]; then
    lock_cache
    "$DAISY_ROOT/scripts/mlx/build.sh" "$dir" "$platform" || exit 1
  fi
  write_config aarch64-apple-darwin "$dir"
  say "ready: MLX $MLX_VERSION for $platform, in $dir"
}
