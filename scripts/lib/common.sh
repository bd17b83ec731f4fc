# shellcheck shell=bash disable=SC2034 # variables are for the scripts that source this
# What the scripts here share: messages, pins, and where this machine keeps things.
# Sourced, never run. It downloads and writes nothing until asked. Bash 3.2 (macOS) must read it.

# fail MESSAGE HINT... : how every script ends when it cannot go on.
fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  local hint
  for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
  # Inside $(…) only the inner shell ends here. The status tells the outer one that all is said.
  [ "$BASH_SUBSHELL" = 0 ] || exit "$ALREADY_TOLD"
  exit 1
}
readonly ALREADY_TOLD=97

# Catches what no `|| fail` foresaw, so that no failure is silent.
unforeseen() {
  [ "$1" != "$ALREADY_TOLD" ] || exit "$((BASH_SUBSHELL ? ALREADY_TOLD : 1))"
  fail "${0##*/} stopped at $2: $3" "bash -x $0 shows how it came there"
}
set -E
trap 'unforeseen $? "${BASH_SOURCE[0]##*/}:$LINENO" "$BASH_COMMAND"' ERR

say() { printf '%s\n' "$*" >&2; }

# Pins. scripts/mlx/bindgen/Cargo.toml and the checksums in scripts/mlx/wheels.sh go with them.
readonly MLX_VERSION=0.32.2
readonly MLX_SYS_VERSION=0.7.0

# plain_path NAME VALUE : absolute, and without what a linker argument, a search path or a TOML string cannot hold.
plain_path() {
  case $2 in
    *[\"\'\\,:\$]*) fail "$1=$2 has a character that linkers and search paths cannot take" "choose a plainer path" ;;
    /*) ;;
    *) fail "$1=$2 is not an absolute path" "write it out from /" ;;
  esac
}

DAISY_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
DAISY_CACHE=${DAISY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/daisy}
plain_path DAISY_CACHE "$DAISY_CACHE"
DAISY_OS=$(uname -s)
DAISY_ARCH=$(uname -m)
[ "$DAISY_ARCH" != arm64 ] || DAISY_ARCH=aarch64

# What `scripts/setup model`, `reference` and `templates` bring.
readonly MODEL_VERSION=0.1.2
MODEL_GGUF=$DAISY_CACHE/smollm2-$MODEL_VERSION/SmolLM2-135M-Instruct.Q4_1.gguf
REFERENCE_VENV=$DAISY_CACHE/reference-$MLX_VERSION
TEMPLATES_DIR=$DAISY_CACHE/templates-1

# The MLX that this machine takes, by the names of scripts/mlx/wheels.sh.
mlx_platform() {
  case $DAISY_OS in
    Darwin) mlx_platform_of "$(sw_vers -productVersion)" ;;
    *) echo linux ;;
  esac
}

# mlx_platform_of VERSION : nothing where macOS is too old. (The wheel for 26 has kernels for 26.2.)
mlx_platform_of() {
  case $1 in
    14 | 14.*) echo macos-14 ;;
    15 | 15.* | 26 | 26.[01] | 26.[01].*) echo macos-15 ;;
    2[6-9].* | [3-9][0-9].*) echo macos-26 ;;
  esac
}

# Where this machine's MLX is kept.
mlx_dir() { mlx_dir_of "$(mlx_platform)"; }

# mlx_dir_of PLATFORM : the name covers all that decides the content, so that a change makes another directory, and
# older clones go on with theirs.
mlx_dir_of() {
  local platform=$1 key
  [ "$platform" != linux ] || platform=$DAISY_ARCH
  key=$(cd "$DAISY_ROOT/scripts/mlx" &&
    { echo "$MLX_VERSION $MLX_SYS_VERSION" && cat build.sh wheels.sh compat.cpp format.h bindgen/Cargo.lock bindgen/src/main.rs; } |
    sha256 | cut -c 1-10)
  echo "$DAISY_CACHE/mlx-$MLX_VERSION-$platform-$key"
}

# Macs have the second of the two.
sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

# Debian's OpenBLAS with threads, to preload (LD_PRELOAD) where speed counts more than bit equality: models
# of plain float weights prefill several times faster than with the reference BLAS that MLX's wheel brings. Nothing where
# it is missing.
openblas() {
  local so=/usr/lib/$DAISY_ARCH-linux-gnu/openblas-pthread/libopenblas.so.0
  [ ! -e "$so" ] || echo "$so"
}

# One writer at a time, until the script ends: two clones set up at once would do the same work twice. (macOS lacks
# flock, and little is made there.)
lock_cache() {
  mkdir -p "$DAISY_CACHE" || fail "cannot make the cache directory $DAISY_CACHE" "set DAISY_CACHE to a directory that this user may write"
  command -v flock >/dev/null || return 0
  exec 9>"$DAISY_CACHE/lock"
  flock -n 9 || { say "Waiting for another scripts/setup" && flock 9; }
}

# download_wheel DEST PLATFORM NAME==VERSION SHA256... : one wheel from PyPI, unpacked into the directory DEST.
# Any Python serves (3.12 is only a name here), since nothing of it is installed.
download_wheel() {
  local dest=$1 platform=$2 requirement=$3 sum
  shift 3
  for sum in "$@"; do requirement="$requirement --hash=sha256:$sum"; done
  mkdir -p "$dest.wheel" && echo "$requirement" >"$dest.wheel/requirements.txt" &&
    python3 -m pip download --disable-pip-version-check --quiet --no-deps --only-binary=:all: --python-version 3.12 \
      --platform "$platform" --dest "$dest.wheel" --requirement "$dest.wheel/requirements.txt" &&
    python3 -m zipfile -e "$dest.wheel"/*.whl "$dest" &&
    rm -r "$dest.wheel"
}
