//! `daisy cluster …`: the commands and what they share.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};

use super::{Failure, home, machine_name};
use super::{logs, serve::ServeArgs, status, trust, up};
use crate::engine;
use crate::node::{CONTROL_PORT, Node, NodeConfig, Opened};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run this machine's node in the foreground
    Up(up::Up),
    /// Serve a model over this node and its peers
    Serve(ServeArgs),
    /// Print this node's id
    Id,
    /// Let another node work with this one
    Trust(trust::Trust),
    /// Show what this machine's node is doing
    Status,
    /// Show a node's log, its ranks' lines included
    Logs(logs::Logs),
}

impl Command {
    pub(crate) fn run(self, home_flag: Option<PathBuf>) -> Result<(), Failure> {
        let home = home(home_flag)?;
        match self {
            Self::Up(up) => up.run(home),
            Self::Serve(serve) => serve.run(home),
            Self::Id => trust::print_id(&home),
            Self::Trust(trust) => trust.run(&home),
            Self::Status => status::run(&home),
            Self::Logs(logs) => logs.run(&home),
        }
    }
}

/// What a node needs to know, whether `up` runs it or `serve` hosts it.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Another node's address; port 51738 unless given; may be repeated
    #[arg(long = "peer", value_name = "ADDR[:PORT]")]
    pub(crate) peers: Vec<String>,
    /// Where other nodes reach this one (UDP)
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "0.0.0.0")]
    pub(crate) listen: String,
    /// This node's name in messages [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

impl NodeArgs {
    pub(crate) fn peer_addrs(&self) -> Result<Vec<SocketAddr>, Failure> {
        self.peers.iter().map(|peer| address("--peer", peer)).collect()
    }

    pub(crate) fn open(&self, home: PathBuf) -> Result<Opened, Failure> {
        // Said when the node starts, and not first by a rank in the middle of a load.
        engine::check_kernels().map_err(anyhow::Error::from)?;
        let config = NodeConfig {
            home,
            name: self.name.clone().unwrap_or_else(machine_name),
            listen: address("--listen", &self.listen)?,
            peers: self.peer_addrs()?,
        };
        Ok(Node::open(config).map_err(anyhow::Error::from)?)
    }
}

/// `ADDR`, `ADDR:PORT`, `[V6]:PORT` or a name of either form.
pub(crate) fn address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(addr);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse() {
        return Ok(SocketAddr::new(ip, CONTROL_PORT));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok()),
        None => (text, Some(CONTROL_PORT)),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let Some(port) = port.filter(|_| !name.is_empty() && name.chars().all(is_name)) else {
        return Err(Failure::usage(format!(
            "{flag} {text}: not an address; write ADDR or ADDR:PORT, as in 169.254.7.2:{CONTROL_PORT}"
        )));
    };
    let unknown =
        |why| Failure::usage(format!("{flag} {text}: no address of {name} is known{why}"));
    let mut found =
        (name, port).to_socket_addrs().map_err(|error| unknown(format!(": {error}")))?;
    found.next().ok_or_else(|| unknown(String::new()))
}

/// A runtime for the node and its command line. Ranks are processes of their own, so two threads do.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_control_port_unless_they_bring_one() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:51738"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:51738"),
            ("[::1]:7", "[::1]:7"),
            ("localhost:7", "127.0.0.1:7"),
        ] {
            let addr = address("--peer", text).expect("an address");
            // A resolver may put ::1 first for localhost.
            assert!(addr.to_string() == expected || addr.to_string() == "[::1]:7", "{addr}");
        }
        let message = |text: &str| match address("--peer", text) {
            Err(Failure::Refused(refusal)) => refusal.message,
            other => panic!("{text}: {other:?}"),
        };
        for bad in ["", ":7", "a b", "127.0.0.1:x", "127.0.0.1:70000", "[::1:7", "::1]:x"] {
            assert!(message(bad).contains("not an address"), "{bad}");
        }
        assert!(message("nobody.invalid:7").contains("no address of nobody.invalid is known"));
    }
}
