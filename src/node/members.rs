//! The nodes of a pipeline before it is planned: this one, the paired nodes that answer, and those that
//! were named by address; each checked for trust, version and checkpoint, and the links between them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use daisy_proto::control::{NodeFacts, Request, Response};
use daisy_proto::local::{Nodes, Refusal, RefusalKind, Serve};
use daisy_proto::{NodeId, NodeLink};
use futures::future::join_all;
use tokio::sync::mpsc;

use super::Node;
use super::measuring::{Wanted, ask_for_link, link_to, own_facts};
use super::peers::{Peer, PeerEvent};
use super::planning::{Machine, Ways};
use super::staging::{Detour, Hops};
use crate::links::{self, Edge};
use crate::net::DialError;
use crate::preflight::{self, NodeAnswer, NodeFault};

/// A node that may hold a rank.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: NodeId,
    /// As users know it: name and address.
    pub(crate) name: String,
    /// What it can spare, and how it is reached.
    pub(crate) facts: NodeFacts,
    /// None: this node.
    pub(crate) peer: Option<(Peer, mpsc::Receiver<PeerEvent>)>,
}

impl Member {
    pub(crate) fn machine(&self) -> Machine {
        Machine { name: self.facts.name.to_string(), facts: self.facts.facts.clone() }
    }
}

/// A ring of members whose links will do.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) hops: Hops,
    /// Where a rank has no fast link to the next.
    pub(crate) detours: Vec<Option<Detour>>,
    /// What carries each edge, in words; none within one node.
    pub(crate) best: Vec<Option<String>>,
    /// What the user should know.
    pub(crate) notes: Vec<String>,
}

/// Connects to every paired node that answers and to every one of `addrs`, and asks what it has. With
/// those that may take part come all faults of the others, and of their checkpoints.
pub(crate) async fn gather(
    node: &Node,
    addrs: &[SocketAddr],
    wish: &Serve,
    model: &str,
    digest: &[u8; 32],
) -> Result<(Vec<Member>, Option<Refusal>), Refusal> {
    node.neighbours.settled().await;
    let ready = node.neighbours.ready();
    // Named by hand first: that is the order of ranks.
    let mut peers: Vec<(SocketAddr, Option<NodeId>)> =
        addrs.iter().map(|addr| (*addr, None)).collect();
    let found = ready.iter().filter(|ready| !addrs.contains(&ready.addr));
    peers.extend(found.map(|ready| (ready.addr, Some(ready.id))));
    let asked = join_all(peers.iter().map(|(addr, id)| meet(node, *addr, *id))).await;
    let (id, name) = (node.identity.node_id(), node.name.to_string());
    let mut members = vec![Member { id, name, facts: own_facts(node).await, peer: None }];
    let mut answers = Vec::new();
    for ((addr, _), outcome) in peers.iter().zip(asked) {
        match outcome {
            // One peer may be named by two addresses.
            Ok(member) if members.iter().all(|known| known.id != member.id) => members.push(member),
            Ok(_) => {}
            Err(fault) => answers.push(NodeAnswer { node: addr.to_string(), digest: Err(fault) }),
        }
    }
    let names: Vec<String> = members.iter().map(|member| member.facts.name.to_string()).collect();
    let mut members: Vec<Option<Member>> = members.into_iter().map(Some).collect();
    let chosen = choose(&names, wish)?;
    let members: Vec<Member> = chosen.iter().filter_map(|at| members[*at].take()).collect();
    let looked = members.iter().filter_map(|member| {
        let (peer, _) = member.peer.as_ref()?;
        Some(async move {
            NodeAnswer { node: member.name.clone(), digest: look(peer, &wish.model).await }
        })
    });
    answers.extend(join_all(looked).await);
    let fault = preflight::check(model, digest, &answers).err();
    Ok((members, fault))
}

/// Which of the nodes of these names the user wants, this one, the first, first.
pub(crate) fn choose(there: &[String], wish: &Serve) -> Result<Vec<usize>, Refusal> {
    let named = match &wish.nodes {
        Nodes::Named(named) => named.as_slice(),
        Nodes::Best | Nodes::All | Nodes::Count(_) => &[],
    };
    let is_there = |name: &&String| !there.contains(name);
    if let Some(unknown) = named.iter().chain(&wish.exclude).find(is_there) {
        return Err(Refusal {
            message: format!("no node named `{unknown}` answers"),
            hints: vec![format!("there are: {}", there.join(", "))],
            kind: RefusalKind::Usage,
        });
    }
    if wish.exclude.contains(&there[0]) {
        return Err(Refusal {
            message: format!("`{}` drives and holds rank 0: it cannot be left out", there[0]),
            hints: vec!["run this command on another node".to_owned()],
            kind: RefusalKind::Usage,
        });
    }
    let place = |at: &usize| named.iter().position(|name| *name == there[*at]);
    let is_wanted = |at: &usize| {
        (named.is_empty() || place(at).is_some() || *at == 0) && !wish.exclude.contains(&there[*at])
    };
    let mut chosen: Vec<usize> = (0..there.len()).filter(is_wanted).collect();
    // A stable sort: without names the order stays as it was.
    chosen.sort_by_key(|at| (*at != 0, place(at)));
    Ok(chosen)
}

/// The ways from each member to the next, round the ring: measured where that was not done lately. Where a link is
/// too slow other nodes pass hidden states on; where none can, it is refused.
pub(crate) async fn join_up(
    node: &Node,
    members: &[Member],
    ways: &Ways,
    wish: &Serve,
    hidden_bytes: u64,
) -> Result<Joined, Refusal> {
    let world = members.len();
    let mut edges: Vec<Edge> = Vec::new();
    for (k, from) in members.iter().enumerate() {
        let to = &members[(k + 1) % world];
        let link = match (from.id == to.id, world, k) {
            (true, ..) => None,
            // There and back it is one link.
            (false, 2, 1) => edges[0].link.clone(),
            _ => Some(link_between(node, from, to).await),
        };
        let has_cable =
            from.facts.cables.iter().any(|cable| {
                to.facts.cables.iter().any(|other| other.own_domain == cable.peer_domain)
            });
        edges.push(Edge { from: quoted(from), to: quoted(to), link, has_cable });
    }
    let is_usable = |edge: &Edge| match &edge.link {
        Some(Ok(link)) => links::usable(link, &wish.links).next().is_some(),
        Some(Err(_)) => false,
        None => true,
    };
    let detour = |(k, edge): (usize, &Edge)| {
        let (from, to) = (members[k].id, members[(k + 1) % world].id);
        if is_usable(edge) { None } else { ways.detour(from, to, &wish.links) }
    };
    let detours: Vec<Option<Detour>> = edges.iter().enumerate().map(detour).collect();
    let direct = edges.iter().zip(&detours).filter(|(_, detour)| detour.is_none());
    let direct: Vec<Edge> = direct.map(|(edge, _)| edge.clone()).collect();
    let mut notes = links::check(&direct, &wish.links, hidden_bytes)?;
    for (edge, detour) in edges.iter().zip(&detours) {
        if let Some(Detour { legs }) = detour {
            let over: Vec<String> = legs[1..].iter().map(|leg| ways.quoted(leg.from)).collect();
            let over = over.join(" and ");
            let (from, to) = (&edge.from, &edge.to);
            notes.push(format!(
                "{from} and {to} have no fast link: hidden states between them go over {over}"
            ));
        }
    }
    let ways = |(edge, from): (&Edge, &Member)| match &edge.link {
        Some(Ok(link)) => links::usable(link, &wish.links)
            .map(|path| links::ends(link, path, from.id))
            .map(|(own, other)| (own.clone(), other.clone()))
            .collect(),
        _ => Vec::new(),
    };
    let best = |edge: &Edge| match &edge.link {
        Some(Ok(link)) => Some(links::best_now(link, &wish.links)),
        _ => None,
    };
    let hops = edges.iter().zip(members).map(ways).collect();
    Ok(Joined { hops, detours, best: edges.iter().map(best).collect(), notes })
}

/// What is known of the link between two members, measured if need be.
pub(crate) async fn link_between(
    node: &Node,
    from: &Member,
    to: &Member,
) -> Result<NodeLink, String> {
    match (&from.peer, &to.peer) {
        (None, Some((peer, _))) => link_to(node, peer, &to.facts, Wanted::Good).await,
        (Some((peer, _)), None) => link_to(node, peer, &from.facts, Wanted::Good).await,
        (Some((peer, _)), Some(_)) => {
            let asked = ask_for_link(peer, to.id, to.facts.clone(), Wanted::Good).await;
            asked.map_err(|error| format!("{} says: {error}", from.name))
        }
        (None, None) => Err("both are this node".to_owned()),
    }
}

fn quoted(member: &Member) -> String {
    format!("`{}`", member.facts.name)
}

async fn meet(node: &Node, addr: SocketAddr, id: Option<NodeId>) -> Result<Member, NodeFault> {
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
    match peer.call(Request::Facts, FACTS_MAX).await {
        Ok(Response::Facts(facts)) => {
            node.survey.keep_facts(id, (*facts).clone());
            let name = format!("`{}` ({addr})", facts.name);
            Ok(Member { id, name, facts: *facts, peer: Some((peer, events)) })
        }
        Ok(other) => Err(NodeFault::Refused(format!("{addr} answered out of turn: {other:?}"))),
        Err(error) => Err(NodeFault::NotReachable(error.to_string())),
    }
}

/// The digest of a peer's checkpoint.
async fn look(peer: &Peer, path: &Path) -> Result<[u8; 32], NodeFault> {
    let request = Request::Checkpoint { path: path.to_owned() };
    match peer.call(request, CHECKPOINT_MAX).await {
        Ok(Response::Checkpoint(digest)) => digest.map_err(NodeFault::Checkpoint),
        Ok(other) => Err(NodeFault::Refused(format!("it answered out of turn: {other:?}"))),
        Err(error) => Err(NodeFault::NotReachable(error.to_string())),
    }
}

const DIAL_MAX: Duration = Duration::from_secs(5);
/// macOS takes seconds to look for its cables the first time.
const FACTS_MAX: Duration = Duration::from_secs(20);
/// The headers of a large checkpoint on a cold disk.
const CHECKPOINT_MAX: Duration = Duration::from_secs(20);
const EVENTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use daisy_proto::local::{Headroom, LinkWish};

    fn wish(nodes: Nodes, exclude: &[&str]) -> Serve {
        Serve {
            model: PathBuf::from("/m"),
            host: None,
            driver: None,
            port: 0,
            peers: Vec::new(),
            layers: Vec::new(),
            nodes,
            exclude: exclude.iter().map(|name| (*name).to_owned()).collect(),
            links: LinkWish::default(),
            context: None,
            sequences: 1,
            headroom: Headroom::Usual,
            chunk: 1,
            dtype: None,
        }
    }

    #[test]
    fn unknown_names_and_the_driver_itself_are_refused() {
        let named = |names: &[&str]| Nodes::Named(names.iter().map(|n| (*n).to_owned()).collect());
        let there = ["studio", "mini"].map(str::to_owned);
        for (wish, part) in [
            (wish(named(&["air"]), &[]), "no node named `air` answers"),
            (wish(Nodes::All, &["air"]), "no node named `air` answers"),
            (wish(Nodes::All, &["studio"]), "`studio` drives"),
        ] {
            let refusal = choose(&there, &wish).expect_err(part);
            assert!(refusal.message.contains(part), "{}", refusal.message);
            assert_eq!(refusal.kind, RefusalKind::Usage);
        }
    }

    #[test]
    fn the_driver_is_first_and_then_they_come_as_named() {
        let named = Nodes::Named(["air", "mini"].map(str::to_owned).to_vec());
        let there = ["studio", "mini", "pro", "air"].map(str::to_owned);
        assert_eq!(choose(&there, &wish(named, &[])), Ok(vec![0, 3, 1]));
        assert_eq!(choose(&there, &wish(Nodes::Best, &["mini"])), Ok(vec![0, 2, 3]));
    }
}
