# shellcheck shell=bash
# scripts/setup on Linux: packages, MLX, and cargo's configuration. Sourced after common.sh.

readonly CONFIG=$DAISY_ROOT/.cargo/config.toml
readonly CONFIG_MARK="# Written by scripts/setup"

setup_linux() {
  local triple dir
  triple=$(rustc -vV | sed -n 's/^host: //p')
  case $triple in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
    *) fail "there is no MLX library for $triple" "use Linux with glibc on x86-64 or arm64, or a Mac with Apple silicon" ;;
  esac
  check_lock
  dir=$(mlx_dir)
  if [ -d "$dir" ]; then
    install_packages running
  else
    check_glibc
    install_packages running building
    lock_cache
    [ -d "$dir" ] || "$DAISY_ROOT/scripts/mlx/build.sh" "$dir" || exit 1
  fi
  write_config "$triple" "$dir"
  say "ready: MLX $MLX_VERSION for the CPU, in $dir"
}

# The wheel's libraries ask for glibc 2.35.
check_glibc() {
  local version
  version=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2) || true
  [ "$(printf '%s\n' 2.35 "${version:-0}" | sort -V | head -n 1)" = 2.35 ] ||
    fail "MLX needs glibc 2.35 or later, this machine has ${version:-another C library}" "Debian 12 and Ubuntu 22.04 are new enough"
}

# The declarations made here must be those of the mlx-sys that cargo will compile.
check_lock() {
  local locked=
  [ ! -e "$DAISY_ROOT/Cargo.lock" ] || locked=$(sed -n '/^name = "mlx-sys"$/{n;s/^version = "\(.*\)"$/\1/p;}' "$DAISY_ROOT/Cargo.lock")
  [ "${locked:-$MLX_SYS_VERSION}" = "$MLX_SYS_VERSION" ] ||
    fail "Cargo.lock has mlx-sys $locked, and scripts/setup prepares $MLX_SYS_VERSION" \
      "change the pins in scripts/lib/common.sh, scripts/mlx/build.sh and scripts/mlx/bindgen/Cargo.toml together"
}

# install_packages PURPOSE... : brings Debian's packages that the purposes need and this machine lacks.
install_packages() {
  local missing=() purpose
  for purpose in "$@"; do
    case $purpose in
      running)
        command -v g++ >/dev/null || missing+=(g++)
        command -v ip >/dev/null || missing+=(iproute2)
        [ -n "$(openblas)" ] || missing+=(libopenblas0-pthread)
        ;;
      building)
        has_pip || missing+=(python3-pip)
        has_libclang || missing+=(libclang-dev)
        has_format || missing+=(libfmt-dev)
        ;;
      fetching) has_pip || missing+=(python3-pip) ;;
      python) python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv) ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local command=(apt-get install -y --no-install-recommends "${missing[@]}")
  command -v apt-get >/dev/null ||
    fail "packages are missing, by Debian's names: ${missing[*]}" "install their like with this machine's package manager"
  [ "$(id -u)" = 0 ] || fail "packages are missing: ${missing[*]}" "sudo apt-get update && sudo ${command[*]}"
  say "Installing ${missing[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive "${command[@]}" -qq >/dev/null; } ||
    fail "apt-get could not install ${missing[*]}" "see what it says to: ${command[*]}"
}

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

# The file that only the development package has, for with it come the headers that bindgen's clang reads.
has_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang.so' >/dev/null || compgen -G '/usr/lib*/libclang.so' >/dev/null
}

# std::format, which mlx-c uses: GCC has it from 13 on, before that fmt stands in. (Without a compiler to ask, fmt comes
# along: it does no harm.)
has_format() {
  [ -e /usr/include/fmt/format.h ] || echo '#include <format>' | g++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
}

# What DAISY_TARGET_DIR says now, or said when the configuration was written; where CI=true, `shared`.
target_choice() {
  local recorded=
  if [ "${CI:-}" = true ]; then
    recorded=shared
  elif [ -e "$CONFIG" ]; then
    recorded=$(sed -n 's/^# DAISY_TARGET_DIR=//p' "$CONFIG")
  fi
  echo "${DAISY_TARGET_DIR-$recorded}"
}

target_dir() {
  local choice
  choice=$(target_choice)
  case $choice in
    "") echo "$DAISY_ROOT/target" ;;
    # By compiler version, because a target directory keeps what every compiler left in it.
    shared) echo "$DAISY_CACHE/target-$(rustc --version | cut -d ' ' -f 2)" ;;
    *) plain_path DAISY_TARGET_DIR "$choice" && echo "$choice" ;;
  esac
}

# mlx-sys declares `links = "mlx"`: given this, cargo takes these answers instead of running its build script, which
# can only link on macOS.
#
# RUNPATH, not RPATH, so that LD_LIBRARY_PATH can put another MLX first, such as the one for CUDA. A packaged binary
# looks beside itself first, for mlx/lib as in the wheel.
config() {
  local triple=$1 dir=$2 choice=$3 target=$4
  cat <<END
$CONFIG_MARK for this machine, not committed. Do not edit: run scripts/setup again.
# DAISY_TARGET_DIR=$choice

[target.$triple]
rustflags = ["-C", "link-arg=-Wl,--enable-new-dtags,-rpath,\$ORIGIN/mlx/lib:$dir/mlx/lib"]

[target.$triple.mlx]
rustc-link-search = ["native=$dir/lib", "native=$dir/mlx/lib"]
rustc-link-lib = ["static=mlxc", "static=daisy_mlx_compat", "dylib=mlx", "dylib=stdc++"]
rustc-env = { OUT_DIR = "$dir/out" }
END
  [ -z "$choice" ] || printf '\n[build]\ntarget-dir = "%s"\n' "$target"
}

write_config() {
  local choice target new
  choice=$(target_choice)
  target=$(target_dir)
  new=$(config "$1" "$2" "$choice" "$target")
  if [ -e "$CONFIG" ]; then
    case $(head -n 1 "$CONFIG") in
      "$CONFIG_MARK"*) ;;
      *) fail ".cargo/config.toml was not written by scripts/setup, and is left as it is" \
        "move your lines to ~/.cargo/config.toml or into a .cargo above the clone, which cargo reads as well; remove the file; run scripts/setup again" ;;
    esac
    [ "$(cat "$CONFIG")" != "$new" ] || return 0
  fi
  mkdir -p "${CONFIG%/*}"
  printf '%s\n' "$new" >"$CONFIG.new"
  mv "$CONFIG.new" "$CONFIG"
}
