//! Watches the links of a pipeline's ring while it lives. Knows no ranks and decides nothing: it reports.

use std::sync::Arc;
use std::time::Duration;

use daisy_proto::NodeLink;
use daisy_proto::control::{Request, Response};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Node;
use super::measuring::{Wanted, ask_for_link};
use super::peers::Peer;
use super::survey;

/// Reports the link from each node of the ring to the next, by its number, now and then, until it is
/// dropped. None in `ring` is this node.
pub(crate) fn edges(
    node: &Arc<Node>,
    ring: &[Option<Peer>],
    report: &mpsc::Sender<(usize, NodeLink)>,
) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let attended = node.neighbours.ready();
    for peer in ring.iter().flatten() {
        // A neighbour is attended to already.
        if attended.iter().all(|ready| ready.id != peer.id) {
            let (node, peer) = (Arc::clone(node), peer.clone());
            watches.spawn(async move { survey::attend(&node, &peer).await });
        }
    }
    for (edge, from) in ring.iter().enumerate() {
        let to = ring[(edge + 1) % ring.len()].clone();
        let (node, from, report) = (Arc::clone(node), from.clone(), report.clone());
        watches.spawn(async move {
            let interval =
                if from.is_some() && to.is_some() { ASKED_EACH } else { OWN_LOOKED_AT_EACH };
            loop {
                tokio::time::sleep(interval).await;
                if let Some(link) = link_between(&node, from.as_ref(), to.as_ref()).await
                    && report.send((edge, link)).await.is_err()
                {
                    return;
                }
            }
        });
    }
    watches
}

/// As it is known: whoever attends the link keeps it fresh.
async fn link_between(node: &Node, from: Option<&Peer>, to: Option<&Peer>) -> Option<NodeLink> {
    match (from, to) {
        (None, Some(peer)) | (Some(peer), None) => node.survey.of(&peer.id)?.link,
        (Some(from), Some(to)) => {
            // As it is now: with interfaces of before it would be measured anew each time.
            let Ok(Response::Facts(about)) = to.call(Request::Facts, CALL_MAX).await else {
                return None;
            };
            ask_for_link(from, to.id, *about, Wanted::Known).await.ok()
        }
        (None, None) => None,
    }
}

const OWN_LOOKED_AT_EACH: Duration = Duration::from_secs(5);
/// Costs each of two nodes a question.
const ASKED_EACH: Duration = Duration::from_secs(15);
const CALL_MAX: Duration = Duration::from_secs(15);
