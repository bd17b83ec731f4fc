//! The other side of [`super::peers`]: a node is connected, and as a driver it may want ranks here.
//! Whatever it staged ends with its connection.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::path::Path;

use daisy_proto::control::{Event, Facts, Message, Request, Response};
use daisy_proto::local::{FromRank, RankStart, Refusal, RefusalKind, ToRank};
use daisy_proto::{PipelineId, Rank};
use futures::future::join_all;
use tokio::sync::mpsc;

use super::Node;
use super::ranks::{RankEvent, RankProcess};
use super::relay::relay;
use crate::logs;
use crate::net::{ConnectionLost, ControlConnection};
use crate::store::Checkpoint;

/// Serves one driver until its connection ends.
pub(crate) async fn host(node: &Node, connection: ControlConnection) {
    let remote = connection.remote;
    let driver = connection.peer;
    tracing::info!(peer = %driver.short(), %remote, "a node connected");
    let (sender, mut receiver) = connection.split();
    let (events, mut rank_events) = mpsc::channel(EVENTS_MAX);
    let (requests, mut inbox) = mpsc::channel::<Message>(1);
    // Reading is a task of its own: a cancelled read could lose half a message.
    let reading = tokio::spawn(async move {
        loop {
            match receiver.recv().await {
                Ok(message) => {
                    if requests.send(message).await.is_err() {
                        return None;
                    }
                }
                Err(lost) => return Some::<ConnectionLost>(lost),
            }
        }
    });
    let mut ranks = Hosted { node, remote, events, ranks: HashMap::new() };
    loop {
        let message = tokio::select! {
            message = inbox.recv() => match message {
                Some(Message::Request { call, request }) => {
                    Message::Response { call, response: ranks.answer(request).await }
                }
                // A driver answers nothing, since nothing is asked of it.
                Some(Message::Response { .. } | Message::Event(_)) => continue,
                None => break,
            },
            Some((pipeline, rank, event)) = rank_events.recv() => {
                if matches!(event, RankEvent::Exited { .. }) {
                    ranks.ranks.remove(&pipeline);
                }
                match report(pipeline, rank, event) {
                    Some(event) => Message::Event(event),
                    None => continue,
                }
            }
        };
        if sender.send(&message).await.is_err() {
            break;
        }
    }
    // The reader may wait for room in here; without this nobody would ever end the ranks.
    drop(inbox);
    let how =
        reading.await.ok().flatten().map_or_else(|| "closed".to_owned(), |lost| lost.to_string());
    tracing::info!(peer = %driver.short(), how, ranks = ranks.ranks.len(), "a node's connection ended");
    join_all(ranks.ranks.drain().map(|(_, rank)| rank.stop())).await;
}

/// The ranks that one driver has here.
struct Hosted<'a> {
    node: &'a Node,
    remote: SocketAddr,
    events: mpsc::Sender<(PipelineId, Rank, RankEvent)>,
    ranks: HashMap<PipelineId, RankProcess>,
}

impl Hosted<'_> {
    async fn answer(&mut self, request: Request) -> Response {
        match request {
            Request::Facts { checkpoint } => {
                let checkpoint = match checkpoint {
                    Some(path) => Some(digest(&path).await),
                    None => None,
                };
                let (id, name) = (self.node.identity.node_id(), self.node.name.clone());
                Response::Facts(Facts { id, name, checkpoint })
            }
            Request::Logs { lines } => {
                match logs::tail(&self.node.home, lines as usize, LOG_BYTES_MAX) {
                    Ok(text) => Response::Logs(text),
                    Err(error) => refused(format!("the log cannot be read: {error}")),
                }
            }
            Request::Stage(start) => self.stage(start).await,
            Request::Connect { pipeline, previous, next, next_addrs } => {
                match self.ranks.get(&pipeline) {
                    Some(rank) => {
                        let next_addrs = rescoped(next_addrs, self.remote);
                        rank.send(ToRank::Connect { previous, next, next_addrs }).await;
                        Response::Done
                    }
                    None => refused(format!("there is no rank of pipeline {pipeline} here")),
                }
            }
            Request::Stop { pipeline } => {
                if let Some(rank) = self.ranks.remove(&pipeline) {
                    rank.stop().await;
                }
                Response::Done
            }
        }
    }

    async fn stage(&mut self, mut start: RankStart) -> Response {
        let (pipeline, rank) = (start.pipeline, start.rank);
        if start.world == 0 || start.rank.0 >= start.world {
            return refused(format!("there is no rank {rank} of {}", start.world));
        }
        if self.ranks.len() >= RANKS_MAX {
            return refused(format!("a driver may have at most {RANKS_MAX} ranks here"));
        }
        if self.ranks.contains_key(&pipeline) {
            return refused(format!("pipeline {pipeline} has a rank here already"));
        }
        // The rank listens where the driver reaches this node.
        let Ok(local) = address_towards(self.remote) else {
            return refused(format!("this node has no route back to {}", self.remote));
        };
        start.bind = SocketAddr::new(bindable(local.ip()), 0);
        let events = relay(EVENTS_MAX, self.events.clone(), move |event| (pipeline, rank, event));
        match RankProcess::start(start, events).await {
            Ok(process) => {
                let addrs = vec![SocketAddr::new(local.ip(), process.port)];
                let staged = Response::Staged { pid: process.pid, key: process.key, addrs };
                self.ranks.insert(pipeline, process);
                staged
            }
            Err(error) => refused(error.to_string()),
        }
    }
}

/// This machine's address on the way to `remote`. Connecting a UDP socket sends nothing.
pub(crate) fn address_towards(remote: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr =
        if remote.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    socket.local_addr()
}

/// Where a rank listens to be reached at `ip`. A link-local address cannot be bound without its
/// interface; keys, not addresses, decide who comes in.
fn bindable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Ipv6Addr::UNSPECIFIED.into(),
        ip => ip,
    }
}

/// Addresses that came from another machine: the scope of a link-local one is that of this machine's
/// interface, which is the one that leads to the sender.
pub(crate) fn rescoped(addrs: Vec<SocketAddr>, remote: SocketAddr) -> Vec<SocketAddr> {
    let scope = match remote {
        SocketAddr::V6(remote) => remote.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let rescope = |addr| match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        addr => addr,
    };
    addrs.into_iter().map(rescope).collect()
}

/// The digest of a checkpoint on this machine, or why it cannot be read.
pub(crate) async fn digest(path: &Path) -> Result<[u8; 32], String> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || Checkpoint::open(&path)).await;
    match opened {
        Ok(Ok(checkpoint)) => Ok(checkpoint.digest()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// What of a rank's event concerns the driver.
fn report(pipeline: PipelineId, rank: Rank, event: RankEvent) -> Option<Event> {
    Some(match event {
        RankEvent::Message(FromRank::Loading(progress)) => {
            Event::Loading { pipeline, rank, progress }
        }
        RankEvent::Message(FromRank::Ready { resident_bytes, device, dtype }) => {
            Event::Ready { pipeline, rank, resident_bytes, device, dtype }
        }
        RankEvent::Exited { reason, blame } => Event::Exited { pipeline, rank, reason, blame },
        // Tokens come from rank 0, which is the driver's own.
        RankEvent::Message(_) => return None,
    })
}

fn refused(message: String) -> Response {
    Response::Refused(Refusal { message, hints: Vec::new(), kind: RefusalKind::CannotBeDone })
}

/// A control message holds 64 KiB.
const LOG_BYTES_MAX: usize = 48 << 10;
/// A driver holds one pipeline, and a second one while it changes over.
const RANKS_MAX: usize = 4;
/// Progress of a rank that loads: at most one message a layer.
const EVENTS_MAX: usize = 256;
