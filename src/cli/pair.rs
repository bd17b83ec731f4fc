//! `daisy cluster pair`, `invite`, `join` and `unpair`: which nodes know each other's key. The running
//! node does the work, since it holds the port and the windows.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, Pairing, Refusal, RefusalKind, ToNode};

use super::cluster::{address, runtime};
use super::{Failure, render, status};
use crate::identity::Peers;
use crate::ipc::{Reader, Writer};

#[derive(Debug, Args)]
pub(crate) struct Pair {
    /// What `daisy cluster pair` shows on the other machine; without it, this one shows a code
    #[arg(value_name = "CODE")]
    code: Option<String>,
    /// Another node's address, where multicast does not find it; may be repeated
    #[arg(long = "peer", value_name = "ADDR[:PORT]", requires = "code")]
    peers: Vec<String>,
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
        let wish = match self.code {
            Some(code) => Pairing::Enter { code, peers: addresses(&self.peers)? },
            None => Pairing::Show,
        };
        converse(home, &ToNode::Pair(wish))
    }
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
