#!/usr/bin/env bash
# Prints the Homebrew formula for the tars of a release.
#
#   scripts/packaging/formula.sh DIR OWNER/REPOSITORY     DIR holds what `scripts/package macos` made
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

dir=${1:?the directory of the tars} repository=${2:?OWNER/REPOSITORY}
first=$(cd "$dir" && compgen -G 'daisy-*-macos14-arm64.tar.gz') || fail "no tar for macOS 14 in $dir" "scripts/package macos --out $dir"
version=${first#daisy-} version=${version%-macos14-arm64.tar.gz}
filled=$(sed -e "s,@REPOSITORY@,$repository,g" -e "s,@VERSION@,$version,g" "$DAISY_ROOT/scripts/packaging/daisy.rb")
for macos in macos14 macos15 macos26; do
  tar=$dir/daisy-$version-$macos-arm64.tar.gz
  [ -r "$tar" ] || fail "$tar is missing" "scripts/package macos --out $dir"
  name=@SHA256_$(echo "$macos" | tr '[:lower:]' '[:upper:]')@
  filled=${filled//"$name"/$(sha256 <"$tar" | cut -d ' ' -f 1)}
done
printf '%s\n' "$filled"
