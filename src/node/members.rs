//! The nodes of a pipeline before it is planned: this one, the paired nodes that answer, and those that
//! were named by address; each checked for trust, version and checkpoint.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use daisy_proto::NodeId;
use daisy_proto::control::{Request, Response};
use daisy_proto::local::Refusal;
use futures::future::join_all;
use tokio::sync::mpsc;

use super::Node;
use super::peers::{Peer, PeerEvent};
use crate::net::DialError;
use crate::preflight::{self, NodeAnswer, NodeFault};

/// A node that may hold a rank.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    /// None: this node.
    pub(crate) peer: Option<(Peer, mpsc::Receiver<PeerEvent>)>,
}

/// Connects to every paired node that answers and to every one of `addrs`, and asks what it has; all
/// faults are reported at once.
pub(crate) async fn gather(
    node: &Node,
    addrs: &[SocketAddr],
    model: &str,
    checkpoint: &Path,
    digest: &[u8; 32],
) -> Result<Vec<Member>, Refusal> {
    node.neighbours.settled().await;
    let ready = node.neighbours.ready();
    // Named by hand first: that is the order of ranks.
    let mut peers: Vec<(SocketAddr, Option<NodeId>)> =
        addrs.iter().map(|addr| (*addr, None)).collect();
    let found = ready.iter().filter(|ready| !addrs.contains(&ready.addr));
    peers.extend(found.map(|ready| (ready.addr, Some(ready.id))));
    let asked = join_all(peers.iter().map(|(addr, id)| ask(node, *addr, *id, checkpoint))).await;
    let name = node.name.to_string();
    let mut members = vec![Member { id: node.identity.node_id(), name, peer: None }];
    let mut answers = Vec::new();
    for ((addr, _), outcome) in peers.iter().zip(asked) {
        match outcome {
            Ok((member, digest)) => {
                answers.push(NodeAnswer { node: member.name.clone(), digest });
                // One peer may be named by two addresses.
                if members.iter().all(|known| known.id != member.id) {
                    members.push(member);
                }
            }
            Err(fault) => answers.push(NodeAnswer { node: addr.to_string(), digest: Err(fault) }),
        }
    }
    preflight::check(model, digest, &answers)?;
    Ok(members)
}

type Answer = (Member, Result<[u8; 32], NodeFault>);

async fn ask(
    node: &Node,
    addr: SocketAddr,
    id: Option<NodeId>,
    checkpoint: &Path,
) -> Result<Answer, NodeFault> {
    let dialled = match id {
        Some(id) => node.control.dial_node(id, &[addr], DIAL_MAX).await,
        None => None,
    };
    let dialled = match dialled {
        Some(dialled) => dialled,
        None => node.control.dial(addr, DIAL_MAX).await,
    };
    let connection = dialled.map_err(|error| match error {
        DialError::Unreachable { .. } => NodeFault::NotReachable(error.to_string()),
        other => NodeFault::Refused(other.to_string()),
    })?;
    let (events_in, events) = mpsc::channel(EVENTS_MAX);
    // Its key is proved; what it says of itself is not.
    let id = connection.peer;
    let peer = Peer::start(connection, events_in);
    let request = Request::Facts { checkpoint: Some(checkpoint.to_owned()) };
    let facts = match peer.call(request, FACTS_MAX).await {
        Ok(Response::Facts(facts)) => facts,
        Ok(other) => {
            return Err(NodeFault::Refused(format!("{addr} answered out of turn: {other:?}")));
        }
        Err(error) => return Err(NodeFault::NotReachable(error.to_string())),
    };
    let digest = match facts.checkpoint {
        Some(Ok(digest)) => Ok(digest),
        Some(Err(why)) => Err(NodeFault::Checkpoint(why)),
        None => Err(NodeFault::Checkpoint("it did not look".to_owned())),
    };
    let name = format!("`{}` ({addr})", facts.name);
    Ok((Member { id, name, peer: Some((peer, events)) }, digest))
}

const DIAL_MAX: Duration = Duration::from_secs(5);
/// The headers of a large checkpoint on a cold disk.
const FACTS_MAX: Duration = Duration::from_secs(20);
const EVENTS_MAX: usize = 256;
