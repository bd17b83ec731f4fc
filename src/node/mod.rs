//! The node process: it must outlive any crash, any unload and any lost peer. It owns identity,
//! control connections, the rank processes and text; it never touches MLX.
//!
//! Two roles meet in it. As *driver* it serves a model ([`driver`], with [`members`], [`peers`] and
//! [`requests`]); for other drivers it *hosts* ranks ([`hosting`]). Both start processes by
//! [`ranks`]. Which other nodes there are is kept by [`neighbours`], and what is known of them by
//! [`survey`]; [`pairing`] makes them known. The command line speaks to it through [`attach`], HTTP
//! through [`handle`].
//! Start at [`Node::open`].

mod answer;
mod attach;
mod driver;
mod endpoint;
pub mod handle;
mod hosting;
mod leases;
mod measuring;
mod members;
mod memory_watch;
mod model;
mod named;
mod neighbours;
mod pairing;
mod peers;
pub(crate) mod planning;
mod ranks;
mod relay;
mod remote;
mod remote_logs;
mod requests;
mod roster;
mod search;
mod selftest;
mod staging;
mod survey;
mod watching;

use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use daisy_proto::local::Refusal;
use daisy_proto::{NodeId, NodeName};
use tokio::net::UnixListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use self::leases::Leases;
use self::neighbours::Neighbours;
use self::pairing::Pairings;
pub(crate) use self::pairing::remember;
use crate::discovery::Discovery;
use crate::identity::{Identity, IdentityError, trust_check};
use crate::ipc;
use crate::logs;
use crate::machine::{Limits, Machine};
use crate::net::{ControlEndpoint, KeyError, KeyPair, NetError, ProbeListener};

/// How a node runs.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Key, trusted peers and models live here.
    pub home: PathBuf,
    /// What people call this machine.
    pub name: NodeName,
    /// Where other nodes reach it (UDP).
    pub listen: SocketAddr,
    /// Nodes that multicast does not find.
    pub peers: Vec<SocketAddr>,
    /// Whether to look for others by multicast, and to be seen.
    pub discovery: bool,
    /// What ranks here may take.
    pub limits: Limits,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    pub(crate) identity: Identity,
    pub(crate) home: PathBuf,
    pub(crate) name: NodeName,
    pub(crate) control: ControlEndpoint,
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) key: KeyPair,
    pub(crate) machine: Arc<Machine>,
    /// Answers other nodes' measurements.
    pub(crate) probes: ProbeListener,
    pub(crate) survey: survey::Survey,
    /// Held while this node leads a measurement.
    pub(crate) measuring: Mutex<()>,
    pub(crate) neighbours: Neighbours,
    /// Ranks whose driver is out of reach for the moment.
    pub(crate) leases: Leases,
    pub(crate) pairings: Arc<Pairings>,
    /// Why nodes are not found by multicast; none: they are.
    pub(crate) discovery_fault: Option<Refusal>,
    shutdown: watch::Sender<bool>,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("a node runs already for {}; stop it, or set DAISY_HOME to another folder", .0.display())]
    Running(PathBuf),
    #[error("cannot write logs/node.log in {}: {source}", home.display())]
    Log { home: PathBuf, source: std::io::Error },
    #[error("cannot lock {}: {source}", path.display())]
    Lock { path: PathBuf, source: std::io::Error },
    #[error("cannot open the local socket {}: {source}", path.display())]
    Socket { path: PathBuf, source: std::io::Error },
}

/// A node whose sockets are open; [`Opened::run`] does its work.
#[derive(Debug)]
pub struct Opened {
    node: Arc<Node>,
    discovery: Option<Discovery>,
    local: UnixListener,
    socket: PathBuf,
    /// Held until the socket is gone.
    lock: File,
}

impl Node {
    /// Opens the node's sockets and begins to look for others; call it within a runtime.
    pub fn open(config: NodeConfig) -> Result<Opened, NodeError> {
        let identity = Identity::load_or_create(&config.home)?;
        let socket = ipc::socket_path(&config.home)
            .map_err(|source| NodeError::Socket { path: config.home.clone(), source })?;
        let lock = attach::lock(&config.home)?;
        logs::open(&config.home)
            .map_err(|source| NodeError::Log { home: config.home.clone(), source })?;
        let local = attach::listen(&socket)?;
        let key = KeyPair::from_pkcs8(identity.pkcs8())?;
        let trust = Arc::new(trust_check(&config.home));
        let listen = config.listen.ip();
        let probes = probes(listen, &key, &trust)?;
        let pairings = Arc::new(Pairings::new());
        let windows = Arc::clone(&pairings);
        let pairs = Arc::new(move || windows.are_open());
        let control =
            ControlEndpoint::bind(config.listen, &key, Arc::clone(&trust) as _, pairs, BUILD)?;
        let neighbours = Neighbours::new();
        let (discovery, discovery_fault) =
            match search::start(&config, identity.node_id(), &control, trust) {
                Ok(discovery) => (Some(discovery), None),
                Err(fault) => (None, Some(fault)),
            };
        let node = Arc::new(Self {
            identity,
            home: config.home,
            name: config.name,
            control,
            peers: config.peers,
            key,
            machine: Arc::new(Machine::new(listen, config.limits)),
            probes,
            survey: survey::Survey::default(),
            measuring: Mutex::default(),
            neighbours,
            leases: Leases::default(),
            pairings,
            discovery_fault,
            shutdown: watch::Sender::new(false),
        });
        Ok(Opened { node, discovery, local, socket, lock })
    }

    /// Ends the node as a signal would.
    pub(crate) fn stop(&self) {
        self.shutdown.send_replace(true);
    }

    /// Resolves when the node is to stop.
    pub(crate) async fn stopping(&self) {
        let mut shutdown = self.shutdown.subscribe();
        let _ = shutdown.wait_for(|stop| *stop).await;
    }
}

impl Opened {
    pub fn id(&self) -> daisy_proto::NodeId {
        self.node.identity.node_id()
    }

    /// Where other nodes reach this one.
    pub fn listens(&self) -> SocketAddr {
        self.node.control.local_addr()
    }

    /// Works until `shutdown` resolves; then ends every rank and says goodbye to every peer.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { node, discovery, local, socket, lock } = self;
        let (mut commands, mut hosted) = (JoinSet::new(), JoinSet::new());
        let looking = tokio::spawn(look(Arc::clone(&node), discovery));
        let attached = attach::Attached::default();
        let itself = Arc::clone(&node);
        // Dropped, and so ended, with this function.
        let mut kept = JoinSet::new();
        kept.spawn(async move { selftest::run(&itself).await });
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                connection = local.accept() => match connection {
                    Ok((stream, _)) => {
                        commands.spawn(attach::serve(Arc::clone(&node), stream, attached.clone()));
                    }
                    Err(error) => {
                        // Out of descriptors, say: wait for some to come back.
                        tracing::warn!(%error, "cannot accept a command line");
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                },
                connection = node.control.accept() => match connection {
                    Some(connection) => {
                        let node = Arc::clone(&node);
                        node.neighbours.came_in(connection.peer, connection.remote);
                        let attached = attached.clone();
                        hosted.spawn(async move { hosting::host(&node, &attached, connection).await });
                    }
                    None => break,
                },
                Some(stranger) = node.control.accept_pair() => {
                    let node = Arc::clone(&node);
                    // Each step of it has a deadline, and the door lets few in.
                    commands.spawn(async move { node.pairings.answer(&node, stranger).await });
                }
                () = node.stopping() => break,
                Some(_) = commands.join_next() => {}
                Some(_) = hosted.join_next() => {}
            }
        }
        // What this node drives ends first, while its peers can still be told; closing the control
        // endpoint then ends what it hosts. Each has its own deadlines.
        node.stop();
        kept.abort_all();
        while commands.join_next().await.is_some() {}
        let _ = looking.await;
        node.control.close().await;
        while hosted.join_next().await.is_some() {}
        ipc::remove_socket(&socket);
        drop(lock);
    }
}

/// On all addresses for a node that listens on all of one family: ranks use either family, whichever
/// leads to the other node.
fn probes<T>(listen: IpAddr, key: &KeyPair, trust: &Arc<T>) -> Result<ProbeListener, NetError>
where
    T: Fn(&NodeId) -> bool + Send + Sync + 'static,
{
    let bind = |ip| ProbeListener::bind(ip, key, Arc::clone(trust) as _);
    if listen.is_unspecified() {
        // A machine without IPv6 has the other family left.
        bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(listen))
    } else {
        bind(listen)
    }
}

/// Keeps the list of neighbours; says goodbye when the node stops.
async fn look(node: Arc<Node>, discovery: Option<Discovery>) {
    let seen = discovery.as_ref().map(Discovery::seen);
    // Without discovery there is never news.
    let (_silent, nothing) = watch::channel(Arc::default());
    node.neighbours.run(&node, seen.unwrap_or(nothing)).await;
    if let Some(discovery) = discovery {
        let _ = tokio::task::spawn_blocking(|| discovery.stop()).await;
    }
}

/// A number that nobody can guess.
pub(crate) fn random_u64() -> Result<u64, RandomError> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| RandomError)?;
    Ok(u64::from_le_bytes(bytes))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers")]
pub(crate) struct RandomError;

/// Where a node listens for others, unless told otherwise.
pub const CONTROL_PORT: u16 = 51738;

/// Told to peers of other versions, at most 64 bytes.
pub const BUILD: &str = concat!("daisy ", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use daisy_proto::local::{FromNode, ToNode};
    use tokio::net::UnixStream;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;
    use crate::ipc::{Reader, Writer};

    fn open(home: PathBuf) -> Result<Opened, NodeError> {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let name = NodeName::new("test").expect("a name");
        let (peers, discovery, limits) = (Vec::new(), true, Limits::default());
        Node::open(NodeConfig { home, name, listen, peers, discovery, limits })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_nodes_that_start_together_one_gets_the_home_and_its_socket() {
        for _ in 0..8 {
            let home = tempfile::tempdir().expect("a folder");
            let start = |home| tokio::spawn(async move { open(home) });
            let starts: Vec<_> = (0..8).map(|_| start(home.path().to_owned())).collect();
            let mut winners = Vec::new();
            for start in starts {
                match start.await.expect("no panic") {
                    Ok(opened) => winners.push(opened),
                    Err(error) => assert!(matches!(error, NodeError::Running(_)), "{error}"),
                }
            }
            let [winner] = &winners[..] else { panic!("{} nodes have one home", winners.len()) };
            UnixStream::connect(&winner.socket).await.expect("its socket is in its place");
            std::fs::remove_file(&winner.socket).expect("removed");
        }
    }

    #[tokio::test]
    async fn a_command_line_that_asks_nothing_does_not_keep_the_node() {
        let home = tempfile::tempdir().expect("a folder");
        let opened = open(home.path().to_owned()).expect("opens");
        let socket = opened.socket.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(opened.run(async {
            let _ = stopped.await;
        }));
        let _silent = UnixStream::connect(&socket).await.expect("connects");
        // A later one is answered, so the silent one was accepted.
        let (read, write) = UnixStream::connect(&socket).await.expect("connects").into_split();
        Writer::new(write).write(&ToNode::Status).await.expect("asked");
        let answer = Reader::new(read).read::<FromNode>().await.expect("answered");
        assert!(matches!(answer, Some(FromNode::Status(_))));
        drop(stop);
        timeout(Duration::from_secs(10), running).await.expect("it stops").expect("no panic");
        assert!(!socket.exists());
    }
}
