# shellcheck shell=bash
# Where MLX comes from: PyPI's wheels, by platform. Sourced after common.sh.

# PyPI's checksums of mlx-cpu 0.32.2, x86-64 and arm64.
readonly MLX_CPU_SHA256=(
  fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878
  d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b
)
# Of mlx-metal 0.32.2, for macOS 14, 15 and 26.
readonly MLX_METAL_SHA256=(
  3825fff379dbc107dd3413e564a06caeaa24819910ec49c0439e454c06a1b9b8
  55a369250d220b2cf10213a87a2ac1b1a420608c5b35b1df4e7147ac8e32f121
  e6abeac9ac5265830c9c1541b6f96e9be37a85c2446763a46ad466c63a3837ab
)

# fetch_mlx PLATFORM DIR : unpacks MLX for linux (this machine's CPU), macos-14, macos-15 or macos-26 into DIR.
fetch_mlx() {
  case $1 in
    linux) download_wheel "$2" "manylinux_2_35_$DAISY_ARCH" "mlx-cpu==$MLX_VERSION" "${MLX_CPU_SHA256[@]}" ;;
    macos-14 | macos-15 | macos-26)
      download_wheel "$2" "macosx_${1#macos-}_0_arm64" "mlx-metal==$MLX_VERSION" "${MLX_METAL_SHA256[@]}"
      ;;
    *) fail "there is no MLX for $1" "the platforms are: linux, macos-14, macos-15, macos-26" ;;
  esac
}
