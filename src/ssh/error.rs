//! Why another machine was not reached, or not let us in, each with what would help.

use std::fmt;
use std::path::PathBuf;

use super::known_hosts::NewHostKey;

/// A line of a file, for people: `/home/anna/.ssh/config:12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SshError {
    #[error("{at}: {why}")]
    Config { at: Place, why: String },
    #[error("cannot read {path}: {why}", path = .path.display())]
    File { path: PathBuf, why: String },
    #[error("{}{what} is not what this client does", .at.as_ref().map(|at| format!("{at}: ")).unwrap_or_default())]
    NeedsSystem { what: String, at: Option<Place> },
    #[error("no address of {host} is known: {why}")]
    UnknownHost { host: String, why: String },
    #[error("{host} refuses connections to port {port}")]
    Refused { host: String, port: u16 },
    #[error("{host} did not answer at port {port}: {why}")]
    Unreachable { host: String, port: u16, why: String },
    #[error("{host} did not {what} within {seconds} s")]
    TimedOut { host: String, what: &'static str, seconds: u64 },
    #[error("{} is not known: it shows the {} key {}", .0.name(), .0.kind(), .0.fingerprint)]
    NewHostKey(Box<NewHostKey>),
    #[error(
        "{name} shows the {kind} key {fingerprint}, which is not the one that {at} has for it: it is another machine, it was set up anew, or somebody is in between"
    )]
    ChangedHostKey { name: String, kind: String, fingerprint: String, at: Place },
    #[error("the {kind} key {fingerprint} that {name} shows is revoked by {at}")]
    RevokedHostKey { name: String, kind: String, fingerprint: String, at: Place },
    #[error(
        "{name} is known by a certificate authority ({at}), and certificates are not what this client does"
    )]
    Authority { name: String, at: Place },
    #[error("{user}@{host} did not let us in; {}", what_was_tried(.tried))]
    NotLetIn {
        user: String,
        host: String,
        tried: Vec<String>,
        offers: Vec<&'static str>,
        asks: bool,
    },
    #[error("{host} ended the connection after {count} tries to log in: {}", what_was_tried(.tried))]
    TooManyTries { host: String, count: usize, tried: Vec<String> },
    #[error("the connection to {host} broke off: {why}")]
    Lost { host: String, why: String },
    #[error("SSH with the other machine failed: {0}")]
    Protocol(String),
    #[error("the `ssh` of this machine could not be started: {0}")]
    NoSystemSsh(std::io::Error),
}

/// What the library itself finds wrong; [`super::client`] says where it is known.
impl From<russh::Error> for SshError {
    fn from(error: russh::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl SshError {
    /// What a person can do about it.
    pub fn hints(&self) -> Vec<String> {
        let system = "`--ssh system` has this machine's own `ssh` do it".to_owned();
        match self {
            Self::NeedsSystem { .. } | Self::Authority { .. } => vec![system],
            Self::UnknownHost { .. } => vec![
                "is the name right? On a Mac it stands in System Settings > General > Sharing, as \
                 NAME.local; an address works as well"
                    .to_owned(),
            ],
            Self::Refused { .. } => vec![
                "SSH is off there: on a Mac switch on System Settings > General > Sharing > Remote \
                 Login; on Linux install and start an SSH server"
                    .to_owned(),
            ],
            Self::Unreachable { .. } | Self::TimedOut { .. } => vec![
                "is it on, awake and on this network? A firewall may drop SSH; on a Mac also look at System \
                 Settings > Privacy & Security > Local Network for this terminal"
                    .to_owned(),
            ],
            Self::ChangedHostKey { name, at, .. } => vec![format!(
                "compare the fingerprint with what `ssh-keygen -lf` says there of \
                     /etc/ssh/ssh_host_*_key.pub; if it was set up anew: ssh-keygen -R '{name}' -f '{}'",
                at.path.display()
            )],
            Self::RevokedHostKey { .. } => {
                vec![
                    "give that machine new host keys, or take the line away if it is wrong"
                        .to_owned(),
                ]
            }
            Self::NotLetIn { user, host, offers, asks, .. } => {
                not_let_in(user, host, offers, *asks)
            }
            Self::TooManyTries { .. } => vec![
                "name the right key in ~/.ssh/config: `IdentityFile FILE` and `IdentitiesOnly yes`"
                    .to_owned(),
            ],
            Self::NewHostKey(new) => vec![
                format!(
                    "compare it with what `ssh-keygen -lf` says there of /etc/ssh/ssh_host_*_key.pub; \
                     if it is the same: --accept-new-host-key {}",
                    new.fingerprint
                ),
                "on a terminal this is asked".to_owned(),
            ],
            Self::Config { .. }
            | Self::File { .. }
            | Self::Lost { .. }
            | Self::Protocol(_)
            | Self::NoSystemSsh(_) => Vec::new(),
        }
    }

    /// Whether the machine was not reached at all.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::UnknownHost { .. }
                | Self::Refused { .. }
                | Self::Unreachable { .. }
                | Self::TimedOut { .. }
                | Self::Lost { .. }
        )
    }
}

fn what_was_tried(tried: &[String]) -> String {
    if tried.is_empty() {
        "there was nothing to try".to_owned()
    } else {
        format!("tried: {}", tried.join(", "))
    }
}

fn not_let_in(user: &str, host: &str, offers: &[&'static str], asks: bool) -> Vec<String> {
    let mut hints = vec![format!(
        "it takes {}; `ssh-copy-id {user}@{host}` takes your key there, and {user} must be the account's \
         name there",
        if offers.is_empty() { "nothing more".to_owned() } else { offers.join(", ") }
    )];
    if !asks && offers.iter().any(|offer| ["password", "keyboard-interactive"].contains(offer)) {
        hints.push("on a terminal the password is asked".to_owned());
    }
    if offers.contains(&"gssapi-with-mic") {
        hints.push("for Kerberos, and for keys on hardware: --ssh system".to_owned());
    }
    hints
}
