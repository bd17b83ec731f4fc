//! `daisy cluster pair`, `invite`, `join` and `unpair`: which nodes know each other's key. The running
//! node does the work, since it holds the port and the windows; what goes over SSH is
//! [`super::pair_ssh`]'s and needs no running node.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use clap::{Args, ValueEnum};
use daisy_proto::local::{FromNode, Pairing, Refusal, RefusalKind, ToNode};

use super::cluster::{address, runtime};
use super::pair_ssh::PairOverSsh;
use super::{Failure, render, status};
use crate::identity::Peers;
use crate::ipc::{Reader, Writer};
use crate::ssh::DestinationError;

#[derive(Debug, Args)]
pub(crate) struct Pair {
    /// What `daisy cluster pair` shows on the other machine, or how to reach that machine over SSH;
    /// without it, this one shows a code
    #[arg(value_name = "CODE | USER@HOST[:PORT]")]
    with: Option<String>,
    /// Another node's address, where multicast does not find it; may be repeated
    #[arg(long = "peer", value_name = "ADDR[:PORT]", requires = "with")]
    peers: Vec<String>,
    #[command(flatten)]
    ssh: SshArgs,
}

/// Flags for a machine that is reached over SSH.
#[derive(Debug, Args)]
struct SshArgs {
    /// Which SSH client: Daisy's own, or this machine's `ssh` with all that it can
    #[arg(long = "ssh", value_name = "CLIENT", requires = "with")]
    client: Option<SshClient>,
    /// Copy this machine's Daisy there first, if there is none
    #[arg(long, requires = "with")]
    install: bool,
    /// Accept a host that is not known yet, if its key has this fingerprint (SHA256:…)
    #[arg(long, value_name = "FINGERPRINT", requires = "with", conflicts_with = "client")]
    accept_new_host_key: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SshClient {
    Builtin,
    System,
}

#[derive(Debug, Args)]
pub(crate) struct Invite {
    /// How long it can be used, as in 10m, 90s or 2h
    #[arg(long, value_name = "TIME", default_value = "10m")]
    ttl: String,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// What `daisy cluster invite` printed on the other machine; - reads it from standard input
    #[arg(value_name = "TOKEN")]
    token: String,
    /// Another node's address, where multicast does not find it; may be repeated
    #[arg(long = "peer", value_name = "ADDR[:PORT]")]
    peers: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Unpair {
    /// The other node's name, its id, or the first 8 letters of its id
    #[arg(value_name = "NAME")]
    node: String,
}

impl Pair {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let Some(with) = self.with else { return converse(home, &ToNode::Pair(Pairing::Show)) };
        if !is_code(&with) {
            return over_ssh(&with, &self.peers, self.ssh)?.run(home);
        }
        if let Some(flag) = self.ssh.given() {
            return Err(Failure::usage(format!("{flag} is for USER@HOST, and {with} is a code")));
        }
        let peers = addresses(&self.peers)?;
        converse(home, &ToNode::Pair(Pairing::Enter { code: with, peers }))
    }
}

impl SshArgs {
    /// The first one that is there.
    fn given(&self) -> Option<&'static str> {
        let all = [
            (self.client.is_some(), "--ssh"),
            (self.install, "--install"),
            (self.accept_new_host_key.is_some(), "--accept-new-host-key"),
        ];
        all.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }
}

/// Codes are digits, however they are parted; all else names a machine.
fn is_code(text: &str) -> bool {
    let is_of_code = |c: char| c.is_numeric() || c.is_whitespace() || c == '-';
    text.chars().all(is_of_code)
}

fn over_ssh(with: &str, peers: &[String], ssh: SshArgs) -> Result<PairOverSsh, Failure> {
    let to = with.parse().map_err(|error: DestinationError| Failure::usage(error.to_string()))?;
    if !peers.is_empty() {
        return Err(Failure::usage("--peer is for codes: SSH finds the machine by its name"));
    }
    if let Some(wanted) = &ssh.accept_new_host_key
        && !wanted.starts_with("SHA256:")
    {
        return Err(Failure::usage(format!(
            "--accept-new-host-key {wanted}: write the fingerprint as `ssh-keygen -lf` shows it, as in \
             SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8"
        )));
    }
    Ok(PairOverSsh {
        to,
        by_system: ssh.client == Some(SshClient::System),
        install: ssh.install,
        accept: ssh.accept_new_host_key,
    })
}

impl Join {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let mut token = self.token;
        if token == "-" {
            token.clear();
            std::io::stdin()
                .take(TOKEN_BYTES_MAX)
                .read_to_string(&mut token)
                .context("cannot read the token from standard input")?;
        }
        let peers = addresses(&self.peers)?;
        converse(home, &ToNode::Pair(Pairing::Join { token, peers }))
    }
}

impl Invite {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let ttl_s = seconds(&self.ttl).ok_or_else(|| {
            Failure::usage(format!("--ttl {}: write a time as in 10m, 90s or 2h", self.ttl))
        })?;
        converse(home, &ToNode::Invite { ttl_s })
    }
}

impl Unpair {
    /// The file is what counts: a running node sees the change within a quarter of a second, and ends
    /// connections and ranks.
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let mut peers = Peers::load(home).map_err(anyhow::Error::from)?;
        let meant: Vec<_> = peers.matching(&self.node).into_iter().cloned().collect();
        let refusal = |message: String, hint: &str| {
            let hints = vec![hint.to_owned()];
            Failure::Refused(Refusal { message, hints, kind: RefusalKind::CannotBeDone })
        };
        match &meant[..] {
            [] => Err(refusal(
                format!("no paired node is named {:?}", self.node),
                "`daisy cluster peers` lists them",
            )),
            [peer] => {
                peers.untrust(&peer.id).map_err(anyhow::Error::from)?;
                render::unpaired(peer);
                Ok(())
            }
            several => {
                let ids: Vec<_> = several.iter().map(|peer| peer.id.short()).collect();
                Err(refusal(
                    format!("{:?} may be any of {}", self.node, ids.join(", ")),
                    "give the first 8 letters of the one that you mean",
                ))
            }
        }
    }
}

/// Asks the running node and shows what it answers, to the last word.
fn converse(home: &Path, ask: &ToNode) -> Result<(), Failure> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let (read, write) = status::connect(home).await?.into_split();
        let (mut reader, mut writer) = (Reader::new(read), Writer::new(write));
        writer.write(ask).await.context("cannot ask the node")?;
        loop {
            match reader.read().await.context("cannot hear the node")? {
                Some(FromNode::PairCode { code, expires_s }) => render::pair_code(&code, expires_s),
                Some(FromNode::Paired { id, name }) => {
                    render::paired(&id, &name);
                    return Ok(());
                }
                Some(FromNode::Invitation { token, expires_s }) => {
                    render::invitation(&token, expires_s);
                    return Ok(());
                }
                Some(FromNode::Refused(refusal)) => return Err(Failure::Refused(refusal)),
                Some(other) => {
                    Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?;
                }
                None => Err(anyhow::anyhow!("the node went away"))?,
            }
        }
    });
    runtime.shutdown_background();
    outcome
}

fn addresses(peers: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    peers.iter().map(|peer| address("--peer", peer)).collect()
}

fn seconds(text: &str) -> Option<u32> {
    let (digits, factor) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1),
        b'm' => (&text[..text.len() - 1], 60),
        b'h' => (&text[..text.len() - 1], 3600),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u32>().ok().filter(|_| is_number)?.checked_mul(factor)
}

const TOKEN_BYTES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_machines() {
        for code in ["417-209", "417209", " 417 209", "1", "４１７-209"] {
            assert!(is_code(code), "{code}");
        }
        for machine in ["anna@mini.local", "mini", "192.168.7.2", "-oProxyCommand=x", "::1"] {
            assert!(!is_code(machine), "{machine}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, expected) in [
            ("10m", Some(600)),
            ("90s", Some(90)),
            ("2h", Some(7200)),
            ("45", Some(45)),
            ("", None),
            ("m", None),
            ("-1m", None),
            ("+1m", None),
            ("1d", None),
            ("9999999h", None),
            ("ü", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
