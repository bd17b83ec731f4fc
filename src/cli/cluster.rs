//! `daisy cluster …`: the commands and what they share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use daisy_proto::NodeName;

use super::config::{Config, Percent};
use super::{Failure, home, machine_name};
use super::{down, introduce, logs, pair, peers, plan, serve::ServeArgs, status, stop, trust, up};
use crate::engine;
use crate::machine::Limits;
use crate::node::{CONTROL_PORT, Node, NodeConfig, Opened};
use crate::units::Bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run this machine's node in the foreground
    Up(up::Up),
    /// Serve a model over this node and its peers
    Serve(ServeArgs),
    /// Show how a model would be split, with the arithmetic; nothing is loaded
    Plan(plan::Plan),
    /// End what this machine's node serves; the node stays
    Stop,
    /// End this machine's node
    Down,
    /// Show which other nodes there are
    Peers(peers::Peers),
    /// Make this node and another one know each other, by a code or over SSH
    Pair(pair::Pair),
    /// The other end of pairing over SSH; started by it
    #[command(hide = true)]
    Introduce,
    /// Print a token with which one machine can pair itself
    Invite(pair::Invite),
    /// Use such a token
    Join(pair::Join),
    /// End the work with another node, at once
    Unpair(pair::Unpair),
    /// Print this node's id
    Id,
    /// Let another node work with this one; for scripts
    Trust(trust::Trust),
    /// Become a new node, after Daisy's home was copied
    ResetIdentity,
    /// Show what this machine's node is doing
    Status(status::Status),
    /// Show a node's log, its ranks' lines included
    Logs(logs::Logs),
}

impl Command {
    pub(crate) fn run(self, home_flag: Option<PathBuf>) -> Result<(), Failure> {
        let home = home(home_flag)?;
        match self {
            Self::Up(up) => up.run(home),
            Self::Serve(serve) => serve.run(home),
            Self::Plan(plan) => plan.run(home),
            Self::Stop => stop::run(&home),
            Self::Down => down::down(&home),
            Self::Peers(peers) => peers.run(&home),
            Self::Pair(pair) => pair.run(&home),
            Self::Introduce => introduce::run(&home),
            Self::Invite(invite) => invite.run(&home),
            Self::Join(join) => join.run(&home),
            Self::Unpair(unpair) => unpair.run(&home),
            Self::ResetIdentity => down::reset_identity(&home),
            Self::Id => trust::print_id(&home),
            Self::Trust(trust) => trust.run(&home),
            Self::Status(status) => status.run(&home),
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
    /// Where other nodes reach this one (UDP) [default: every address, port 51738]
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) listen: Option<String>,
    /// This node's name in messages [default: the machine's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<NodeName>,
    /// Neither look for other nodes by multicast nor be seen
    #[arg(long)]
    pub(crate) no_discovery: bool,
    /// The most memory that ranks here may take, as 12GiB [default: what is free]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_limit: Option<Bytes>,
}

impl NodeArgs {
    pub(crate) fn peer_addrs(&self) -> Result<Vec<SocketAddr>, Failure> {
        self.peers.iter().map(|peer| address("--peer", peer)).collect()
    }

    pub(crate) fn open(&self, home: PathBuf) -> Result<Opened, Failure> {
        // Said when the node starts, and not first by a rank in the middle of a load.
        engine::check_kernels().map_err(anyhow::Error::from)?;
        Ok(Node::open(self.config(home)?).map_err(anyhow::Error::from)?)
    }

    /// Flags and file together; a flag counts more.
    pub(crate) fn config(&self, home: PathBuf) -> Result<NodeConfig, Failure> {
        let config = Config::load(&home)?;
        let listen = match (&self.listen, &config.listen) {
            (Some(listen), _) => address("--listen", listen)?,
            (None, Some(listen)) => address("config.toml: listen", listen)?,
            (None, None) => default_listen(),
        };
        let mut peers = self.peer_addrs()?;
        for peer in &config.peers {
            peers.push(address("config.toml: peers", peer)?);
        }
        Ok(NodeConfig {
            home,
            name: self.name.clone().or(config.name).unwrap_or_else(machine_name),
            listen,
            peers,
            discovery: config.discovery.unwrap_or(true) && !self.no_discovery,
            limits: Limits {
                memory_bytes: self.memory_limit.or(config.memory_limit).map(|limit| limit.0),
                ceiling_percent: config.residency_ceiling.map(|Percent(percent)| percent),
            },
        })
    }

    /// What starts the same node again, from anywhere and without a shell.
    pub(crate) fn command_line(&self, home: &Path) -> Result<Vec<String>, Failure> {
        let home = home.to_str().ok_or_else(|| {
            Failure::usage(format!("{}: a service's home has a name in UTF-8", home.display()))
        })?;
        let mut words = ["--home", home, "cluster", "up"].map(str::to_owned).to_vec();
        for peer in &self.peers {
            words.extend(["--peer".to_owned(), peer.clone()]);
        }
        if let Some(listen) = &self.listen {
            words.extend(["--listen".to_owned(), listen.clone()]);
        }
        if let Some(name) = &self.name {
            words.extend(["--name".to_owned(), name.to_string()]);
        }
        if self.no_discovery {
            words.push("--no-discovery".to_owned());
        }
        if let Some(limit) = &self.memory_limit {
            words.extend(["--memory-limit".to_owned(), format!("{}KiB", limit.0 >> 10)]);
        }
        Ok(words)
    }

    /// Flags that only count for a node that is started with them.
    pub(crate) fn of_a_new_node(&self) -> Vec<&'static str> {
        let given = [
            (self.listen.is_some(), "--listen"),
            (self.name.is_some(), "--name"),
            (self.no_discovery, "--no-discovery"),
            (self.memory_limit.is_some(), "--memory-limit"),
        ];
        given.into_iter().filter_map(|(given, flag)| given.then_some(flag)).collect()
    }
}

/// Every address of both families, or of IPv4 where the system has no other.
pub(crate) fn default_listen() -> SocketAddr {
    let has_v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    let any: IpAddr =
        if has_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, CONTROL_PORT)
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
