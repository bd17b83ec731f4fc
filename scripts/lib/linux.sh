# shellcheck shell=bash
# scripts/setup on Linux: packages, MLX, and cargo's configuration. Sourced after common.sh.
# shellcheck source-path=SCRIPTDIR source=cargo.sh
[ -n "${CONFIG_MARK:-}" ] || . "$DAISY_ROOT/scripts/lib/cargo.sh"

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
    [ -d "$dir" ] || "$DAISY_ROOT/scripts/mlx/build.sh" "$dir" linux || exit 1
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

# install_packages PURPOSE... : brings Debian's packages that the purposes need and this machine lacks.
install_packages() {
  local missing=() purpose shell
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
      testing) command -v nft >/dev/null || missing+=(nftables) ;;
      logins)
        [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
        for shell in zsh tcsh fish; do command -v "$shell" >/dev/null || missing+=("$shell"); done
        ;;
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
