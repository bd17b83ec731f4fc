//! What is run on the other machine, and what it answers. The login shell there may be any (zsh, bash,
//! fish, csh), so it is only handed one word in single quotes, on one line, without what one of them
//! gives a meaning there: no quote, backslash, exclamation mark or line end.

use crate::ssh::shown;

/// Finds `daisy` in one of the places and has it introduce itself.
pub(super) fn introduce(places: &str) -> String {
    in_sh(&FIND.replace("PLACES", places))
}

/// Takes a bundle from standard input, looks whether it is whole, and installs it.
pub(super) fn install(sha256: &str) -> String {
    in_sh(&INSTALL.replace("SHA256", sha256))
}

fn in_sh(script: &str) -> String {
    format!("exec sh -c '{script}'")
}

/// A line of these scripts; shells may say something before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// System and processor, as `uname -sm` has them.
    System(String),
    Missing,
    /// Where `daisy` is.
    Found(String),
    /// What it says to `--version`; nothing when it does not start.
    Version(String),
    /// The bundle came to harm on its way.
    Damaged,
    Installed,
    /// The machine lacks what is needed to take the bundle.
    Cannot(String),
}

impl Report {
    /// None: a line of something else.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let line = line.strip_prefix(MARK)?.strip_prefix(' ')?;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "system" => Some(Self::System(shown(rest))),
            "missing" => Some(Self::Missing),
            "found" => Some(Self::Found(shown(rest))),
            "version" => Some(Self::Version(shown(rest))),
            "damaged" => Some(Self::Damaged),
            "installed" => Some(Self::Installed),
            "cannot" => Some(Self::Cannot(shown(rest))),
            _ => None,
        }
    }
}

/// What this machine's `uname -sm` says.
pub(super) fn own_system() -> String {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let os = match os {
        "macos" => "Darwin",
        "linux" => "Linux",
        other => other,
    };
    let arch = if os == "Darwin" && arch == "aarch64" { "arm64" } else { arch };
    format!("{os} {arch}")
}

const MARK: &str = "daisy-pair";

/// An ssh session's search path is short, so the usual places are looked at as well.
pub(super) const PLACES: &str =
    "daisy \"$HOME/.local/bin/daisy\" /opt/homebrew/bin/daisy /usr/local/bin/daisy";
/// Where `install` puts it: another one may still come first in the search path.
pub(super) const INSTALLED: &str = "\"$HOME/.local/bin/daisy\"";

const FIND: &str = "echo \"daisy-pair system $(uname -sm)\"; \
    for d in PLACES; do \
    p=$(command -v \"$d\") && [ -x \"$p\" ] && break; p=; done; \
    if [ -z \"$p\" ]; then echo \"daisy-pair missing\"; exit 0; fi; \
    echo \"daisy-pair found $p\"; \
    echo \"daisy-pair version $(\"$p\" --version 2>/dev/null </dev/null)\"; \
    exec \"$p\" cluster introduce";

/// The bundle's own `install` looks at system and version, tries the new binary, and puts all in its
/// place at once.
const INSTALL: &str = "umask 077; t=$(mktemp -d) || { echo \"daisy-pair cannot make a folder\"; exit 1; }; \
    clean() { rm -rf \"$t\"; }; trap clean EXIT; trap \"exit 1\" HUP INT TERM; \
    cat >\"$t/bundle.tar\" || { echo \"daisy-pair cannot write to $t\"; exit 1; }; \
    s=$({ sha256sum <\"$t/bundle.tar\" || shasum -a 256 <\"$t/bundle.tar\"; } 2>/dev/null | cut -c 1-64); \
    [ \"$s\" = SHA256 ] || { echo \"daisy-pair damaged\"; exit 1; }; \
    umask 022; mkdir \"$t/bundle\" && tar -xf \"$t/bundle.tar\" -C \"$t/bundle\" || \
    { echo \"daisy-pair cannot unpack in $t\"; exit 1; }; \
    \"$t/bundle/install\" >&2 || { echo \"daisy-pair cannot run it there\"; exit 1; }; \
    echo \"daisy-pair installed\"";

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn no_shell_finds_a_meaning_in_the_scripts() {
        for script in [FIND, INSTALL, PLACES, INSTALLED] {
            assert!(!script.contains(['\'', '\\', '!', '\n']), "{script}");
        }
        let line = install(&"a".repeat(64));
        assert!(line.contains(&format!("= {} ]", "a".repeat(64))) && !line.contains("SHA256"));
    }

    #[test]
    fn reports_are_told_from_what_shells_say() {
        for (line, expected) in [
            ("daisy-pair system Darwin arm64", Some(Report::System("Darwin arm64".to_owned()))),
            ("daisy-pair missing", Some(Report::Missing)),
            ("daisy-pair found /a b/daisy", Some(Report::Found("/a b/daisy".to_owned()))),
            ("daisy-pair version ", Some(Report::Version(String::new()))),
            ("daisy-pair version a\u{1b}[2Jb", Some(Report::Version("a[2Jb".to_owned()))),
            ("Welcome to mini", None),
            ("daisy-pair", None),
            ("daisy-pair nonsense", None),
            ("daisy-pairfound x", None),
        ] {
            assert_eq!(Report::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn a_machine_without_daisy_says_so() {
        let home = tempfile::tempdir().expect("a folder");
        let output = Command::new("sh")
            .args(["-c", &introduce(PLACES)])
            .env_clear()
            .envs([("HOME", home.path().as_os_str()), ("PATH", "/usr/bin:/bin".as_ref())])
            .stdin(Stdio::null())
            .output()
            .expect("sh runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let said: Vec<Option<Report>> = text.lines().map(Report::parse).collect();
        assert_eq!(said[0], Some(Report::System(own_system())), "{text}");
        // Unless this machine has one in /usr/local/bin.
        assert!(matches!(said[1], Some(Report::Missing | Report::Found(_))), "{text}");
    }
}
