//! Which machines are what they say: `known_hosts`, read as OpenSSH reads it (`sshd(8)` has the format),
//! and stricter in doubt. Keys are compared by their bytes, so a line in a form that no
//! library decodes still counts. Reading and judging are pure; [`NewHostKey::remember`] writes.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use data_encoding::BASE64;

use super::error::Place;
use super::pattern;

/// The lines of all files, in their order.
#[derive(Debug, Default)]
pub(super) struct KnownHosts(Vec<Line>);

#[derive(Debug)]
struct Line {
    at: Place,
    marker: Option<Marker>,
    hosts: Hosts,
    kind: String,
    key: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    Revoked,
    Authority,
}

#[derive(Debug)]
enum Hosts {
    Patterns(Vec<String>),
    /// HMAC-SHA1 of the name under the salt.
    Hashed {
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
}

/// What the files say of one host's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Known,
    New,
    /// The host is there with other keys, and not with this one.
    Changed(Place),
    Revoked(Place),
    /// The host is there by a certificate authority, which only the system's `ssh` asks.
    Authority(Place),
}

impl KnownHosts {
    /// Takes in a file's text. Lines that are none (comments, damage) say nothing of any host.
    pub(super) fn add(&mut self, path: &Path, text: &str) {
        let lines = text.lines().zip(1..);
        self.0.extend(lines.filter_map(|(line, number)| {
            parse(line, Place { path: path.to_owned(), line: number })
        }));
    }

    /// `name` is as [`name_of`] writes it.
    pub(super) fn judge(&self, name: &str, key: &[u8]) -> Verdict {
        let of_host = || self.0.iter().filter(|line| line.hosts.are(name));
        // A port of its own does not make a revoked key good again.
        let bare =
            name.strip_prefix('[').and_then(|name| name.split_once(']')).map(|(host, _)| host);
        let revoked = self.0.iter().find(|line| {
            let is_host = line.hosts.are(name) || bare.is_some_and(|bare| line.hosts.are(bare));
            line.marker == Some(Marker::Revoked) && line.key == key && is_host
        });
        if let Some(line) = revoked {
            return Verdict::Revoked(line.at.clone());
        }
        let plain = || of_host().filter(|line| line.marker.is_none());
        if plain().any(|line| line.key == key) {
            return Verdict::Known;
        }
        if let Some(line) = plain().next() {
            return Verdict::Changed(line.at.clone());
        }
        match of_host().find(|line| line.marker == Some(Marker::Authority)) {
            Some(line) => Verdict::Authority(line.at.clone()),
            None => Verdict::New,
        }
    }

    /// The kinds of key by which the host is known: those to ask it for first.
    pub(super) fn kinds(&self, name: &str) -> Vec<&str> {
        let plain = self.0.iter().filter(|line| line.marker.is_none() && line.hosts.are(name));
        plain.map(|line| line.kind.as_str()).collect()
    }
}

impl Hosts {
    fn parse(text: &str) -> Option<Self> {
        let Some(hashed) = text.strip_prefix("|1|") else {
            return Some(Self::Patterns(text.split(',').map(str::to_owned).collect()));
        };
        let (salt, hash) = hashed.split_once('|')?;
        let decode = |text: &str| BASE64.decode(text.as_bytes()).ok();
        Some(Self::Hashed { salt: decode(salt)?, hash: decode(hash)? })
    }

    fn are(&self, name: &str) -> bool {
        match self {
            Self::Patterns(patterns) => {
                pattern::list_matches(patterns.iter().map(String::as_str), name)
            }
            Self::Hashed { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::sign(&key, name.as_bytes()).as_ref() == hash
            }
        }
    }
}

fn parse(line: &str, at: Place) -> Option<Line> {
    let mut words = line.split_ascii_whitespace().peekable();
    let marker = match *words.peek()? {
        "@revoked" => Some(Marker::Revoked),
        "@cert-authority" => Some(Marker::Authority),
        word if word.starts_with(['#', '@']) => return None,
        _ => None,
    };
    if marker.is_some() {
        words.next();
    }
    let hosts = Hosts::parse(words.next()?)?;
    let kind = words.next()?.to_owned();
    let key = BASE64.decode(words.next()?.as_bytes()).ok()?;
    Some(Line { at, marker, hosts, kind, key })
}

/// What a host is called in `known_hosts`.
pub(super) fn name_of(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

/// A host that is not known yet, and what it showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHostKey {
    /// As `known_hosts` names it.
    pub(super) name: String,
    /// The key in OpenSSH's form: its kind and base64.
    pub(super) key: String,
    /// `SHA256:…`, as `ssh-keygen -l` shows it.
    pub fingerprint: String,
    /// The file of the known ones.
    pub(super) file: PathBuf,
    /// `StrictHostKeyChecking yes`: nobody is to be asked.
    pub refused_by_config: bool,
}

impl NewHostKey {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ssh-ed25519` and the like.
    pub fn kind(&self) -> &str {
        self.key.split(' ').next().unwrap_or_default()
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes it down: the host is known from here on.
    pub fn remember(&self) -> io::Result<()> {
        if let Some(dir) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let before = match fs::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        // A last line without an end would swallow ours.
        let gap = if before.is_empty() || before.ends_with(b"\n") { "" } else { "\n" };
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.file)?;
        file.write_all(format!("{gap}{self}\n").as_bytes())?;
        file.sync_all()
    }
}

/// The line of the file.
impl fmt::Display for NewHostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not whole keys: only their bytes are compared.
    const OURS: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOurs";
    const OTHER: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIOther+==";

    fn bytes(base64: &str) -> Vec<u8> {
        BASE64.decode(padded(base64).as_bytes()).expect("base64")
    }

    fn padded(base64: &str) -> String {
        let bare = base64.trim_end_matches('=');
        // The last letter must not carry bits beyond the last byte.
        let whole = &bare[..bare.len() / 4 * 4];
        whole.to_owned()
    }

    fn judge(text: &str, name: &str) -> String {
        let text = text.replace("OURS", &padded(OURS)).replace("OTHER", &padded(OTHER));
        let mut hosts = KnownHosts::default();
        hosts.add(Path::new("kh"), &text);
        let at = |what: &str, at: &Place| format!("{what} {}", at.line);
        match hosts.judge(name, &bytes(OURS)) {
            Verdict::Known => "known".to_owned(),
            Verdict::New => "new".to_owned(),
            Verdict::Changed(place) => at("changed", &place),
            Verdict::Revoked(place) => at("revoked", &place),
            Verdict::Authority(place) => at("authority", &place),
        }
    }

    /// Of `mini.local` under a salt of twenty bytes, as `ssh-keygen -H` makes it.
    fn hashed(name: &str) -> String {
        let salt = [7; 20];
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
        let hash = hmac::sign(&key, name.as_bytes());
        format!("|1|{}|{}", BASE64.encode(&salt), BASE64.encode(hash.as_ref()))
    }

    #[test]
    fn hosts_are_found_as_openssh_finds_them() {
        let hash = hashed("mini.local");
        let hashed_port = hashed("[mini.local]:2222");
        for (text, name, expected) in [
            ("", "mini.local", "new"),
            ("mini.local ssh-ed25519 OURS", "mini.local", "known"),
            ("MINI.local ssh-ed25519 OURS", "mini.local", "known"),
            ("mini.local\tssh-ed25519\tOURS\tcomment", "mini.local", "known"),
            ("  mini.local   ssh-ed25519 OURS # ours", "mini.local", "known"),
            ("other,mini.local,10.0.0.1 ssh-ed25519 OURS", "mini.local", "known"),
            ("*.local ssh-ed25519 OURS", "mini.local", "known"),
            ("*.local,!mini.local ssh-ed25519 OURS", "mini.local", "new"),
            ("mini.local ssh-ed25519 OURS", "[mini.local]:2222", "new"),
            ("[mini.local]:2222 ssh-ed25519 OURS", "[mini.local]:2222", "known"),
            ("[*.local]:2222 ssh-ed25519 OURS", "[mini.local]:2222", "known"),
            ("[mini.local]:2222 ssh-ed25519 OURS", "mini.local", "new"),
            (&format!("{hash} ssh-ed25519 OURS"), "mini.local", "known"),
            (&format!("{hash} ssh-ed25519 OURS"), "mini2.local", "new"),
            (&format!("{hashed_port} ssh-ed25519 OURS"), "[mini.local]:2222", "known"),
            ("# mini.local ssh-ed25519 OURS", "mini.local", "new"),
            ("@other mini.local ssh-ed25519 OURS", "mini.local", "new"),
            ("|1|no|hash ssh-ed25519 OURS", "mini.local", "new"),
            (
                "mini.local ssh-ed25519 not+base64\nmini.local ssh-ed25519 OURS",
                "mini.local",
                "known",
            ),
            ("mini.local\nmini.local ssh-ed25519\n\n", "mini.local", "new"),
        ] {
            assert_eq!(judge(text, name), expected, "{text}");
        }
    }

    #[test]
    fn changed_revoked_and_certified_keys_are_told_with_their_line() {
        let hash = hashed("mini.local");
        for (text, name, expected) in [
            ("x k OURS\nmini.local ssh-ed25519 OTHER", "mini.local", "changed 2"),
            ("mini.local ssh-rsa OTHER", "mini.local", "changed 1"),
            ("mini.local a OTHER\nmini.local b OURS", "mini.local", "known"),
            ("mini.local a OURS\n@revoked * a OURS", "mini.local", "revoked 2"),
            ("@revoked\tmini.local\ta\tOURS", "mini.local", "revoked 1"),
            (&format!("mini.local a OURS\n@revoked {hash} a OURS"), "mini.local", "revoked 2"),
            ("[mini.local]:7 a OURS\n@revoked mini.local a OURS", "[mini.local]:7", "revoked 2"),
            ("@revoked other a OURS\nmini.local a OURS", "mini.local", "known"),
            ("@revoked * a OTHER\nmini.local a OURS", "mini.local", "known"),
            ("@revoked mini.local a OTHER", "mini.local", "new"),
            ("@cert-authority *.local a OURS", "mini.local", "authority 1"),
            ("@cert-authority *.local a OTHER\nmini.local a OURS", "mini.local", "known"),
            ("@cert-authority *.lan a OTHER", "mini.local", "new"),
        ] {
            assert_eq!(judge(text, name), expected, "{text}");
        }
    }

    #[test]
    fn a_host_is_asked_for_the_kinds_by_which_it_is_known() {
        let mut hosts = KnownHosts::default();
        let text =
            "a ssh-rsa AAAA\nb ssh-ed25519 AAAA\n@revoked a x AAAA\na ecdsa-sha2-nistp256 AAAA";
        hosts.add(Path::new("kh"), text);
        assert_eq!(hosts.kinds("a"), ["ssh-rsa", "ecdsa-sha2-nistp256"]);
        assert!(hosts.kinds("c").is_empty());
        assert_eq!(name_of("Mini.local", 22), "mini.local");
        assert_eq!(name_of("fe80::1%en0", 2222), "[fe80::1%en0]:2222");
    }

    #[test]
    fn a_new_key_is_written_on_a_line_of_its_own() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join(".ssh/known_hosts");
        let new = NewHostKey {
            name: "[mini.local]:7".to_owned(),
            key: format!("ssh-ed25519 {}", padded(OURS)),
            fingerprint: "SHA256:x".to_owned(),
            file: file.clone(),
            refused_by_config: false,
        };
        new.remember().expect("written");
        fs::write(&file, "other a AAAA").expect("written");
        new.remember().expect("written");
        let text = fs::read_to_string(&file).expect("text");
        assert_eq!(text, format!("other a AAAA\n{new}\n"));
        assert_eq!(judge(&text, "[mini.local]:7"), "known");
        assert_eq!(new.kind(), "ssh-ed25519");
    }
}
