# A Homebrew formula, made of a template by scripts/packaging/formula.sh: it installs the tar for this macOS.
class Daisy < Formula
  desc "Runs one language model split over several Macs"
  homepage "https://github.com/@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]

  # MLX's kernels are made for a macOS; those for 26 need 26.2.
  package, sum = if MacOS.full_version >= "26.2"
    ["macos26", "@SHA256_MACOS26@"]
  elsif MacOS.full_version >= "15"
    ["macos15", "@SHA256_MACOS15@"]
  else
    ["macos14", "@SHA256_MACOS14@"]
  end
  url "https://github.com/@REPOSITORY@/releases/download/v#{version}/daisy-#{version}-#{package}-arm64.tar.gz"
  sha256 sum

  depends_on arch: :arm64
  depends_on macos: :sonoma

  def install
    libexec.install Dir["*"]
    bin.install_symlink libexec/"daisy"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/daisy --version")
  end
end
