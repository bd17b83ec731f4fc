//! Which connected peer a person means by a name or an id.

use std::time::Duration;

use daisy_proto::control::{Request, Response};
use futures::future::join_all;

use super::Node;
use super::peers::Peer;
use super::roster::Ready;

/// The peer that is called `wanted`, or has that id or the beginning of it that is shown. One whose
/// name is not known yet, since it was trusted by its id alone, is asked.
pub(crate) async fn named(node: &Node, wanted: &str) -> Option<Ready<Peer>> {
    node.neighbours.settled().await;
    let ready = node.neighbours.ready();
    let names = join_all(ready.iter().map(|peer| name(node, peer))).await;
    ready.into_iter().zip(names).find_map(|(peer, name)| {
        let is_meant = name.as_deref() == Some(wanted)
            || *peer.id.to_string() == *wanted
            || peer.id.short() == wanted;
        is_meant.then_some(peer)
    })
}

/// As it calls itself, else as it was called when it was paired.
async fn name(node: &Node, peer: &Ready<Peer>) -> Option<String> {
    let known = node.survey.of(&peer.id).and_then(|known| known.facts);
    let facts = match known {
        Some(facts) => Some(facts),
        None => match peer.handle.call(Request::Facts, FACTS_MAX).await {
            Ok(Response::Facts(facts)) => Some(*facts),
            _ => None,
        },
    };
    let said = facts.map(|facts| facts.name.to_string());
    said.or_else(|| peer.name.as_ref().map(ToString::to_string))
}

/// macOS takes seconds to look for its cables the first time.
const FACTS_MAX: Duration = Duration::from_secs(20);
