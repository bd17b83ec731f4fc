//! The checks before any weight is read: every fault found, never only the first. Pure; the node
//! gathers the facts.

use daisy_proto::local::{Refusal, RefusalKind};

/// What a node said about the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node as users know it: name and address.
    pub node: String,
    pub digest: Result<[u8; 32], NodeFault>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeFault {
    /// The node could not be asked; the text names it, its address and the remedy.
    #[error("{0}")]
    NotReachable(String),
    /// The node answers, but will not work with this one: trust or version. The text names both.
    #[error("{0}")]
    Refused(String),
    /// The node cannot read the checkpoint.
    #[error("{0}")]
    Checkpoint(String),
}

/// Whether all nodes can hold a shard of the checkpoint whose digest the driver computed.
pub fn check(model: &str, digest: &[u8; 32], answers: &[NodeAnswer]) -> Result<(), Refusal> {
    let mut faults = Vec::new();
    let mut hints = Vec::new();
    let mut kind = RefusalKind::NotReachable;
    for NodeAnswer { node, digest: answer } in answers {
        match answer {
            Ok(theirs) if theirs == digest => {}
            Ok(_) => {
                kind = RefusalKind::CannotBeDone;
                faults.push(format!("{node} has another version of {model}"));
                hints.push(format!("copy this node's checkpoint of {model} to {node}"));
            }
            Err(NodeFault::Checkpoint(why)) => {
                kind = RefusalKind::CannotBeDone;
                faults.push(format!("{node} cannot read {model}: {why}"));
                hints.push(format!("put the checkpoint at the same path on {node}"));
            }
            Err(NodeFault::Refused(why)) => {
                kind = RefusalKind::CannotBeDone;
                faults.push(why.clone());
            }
            Err(NodeFault::NotReachable(why)) => faults.push(why.clone()),
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Refusal { message: faults.join("\n"), hints, kind })
}

/// One refusal of what was wrong with the nodes, if anything was, and with the plan.
pub fn together(nodes: Option<Refusal>, plan: Refusal) -> Refusal {
    let Some(nodes) = nodes else { return plan };
    let message = format!("{}\n{}", nodes.message, plan.message);
    let hints = nodes.hints.into_iter().chain(plan.hints).collect();
    let kind = if nodes.kind == plan.kind { plan.kind } else { RefusalKind::CannotBeDone };
    Refusal { message, hints, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(node: &str, digest: Result<[u8; 32], NodeFault>) -> NodeAnswer {
        NodeAnswer { node: node.to_owned(), digest }
    }

    #[test]
    fn agreeing_nodes_pass() {
        assert_eq!(check("m", &[1; 32], &[answer("a", Ok([1; 32]))]), Ok(()));
    }

    #[test]
    fn every_fault_is_listed_with_its_node() {
        let refusal = check(
            "tiny",
            &[1; 32],
            &[
                answer("mini", Ok([2; 32])),
                answer("studio", Ok([1; 32])),
                answer("air", Err(NodeFault::Checkpoint("no config.json in /m".to_owned()))),
                answer("mbp", Err(NodeFault::NotReachable("no answer from mbp".to_owned()))),
            ],
        )
        .expect_err("three nodes fail");
        assert_eq!(
            refusal.message,
            "mini has another version of tiny\nair cannot read tiny: no config.json in /m\n\
             no answer from mbp"
        );
        assert_eq!(refusal.kind, RefusalKind::CannotBeDone);
        assert_eq!(refusal.hints.len(), 2);
    }

    #[test]
    fn only_unreachable_nodes_have_their_own_kind() {
        let gone = Err(NodeFault::NotReachable("no answer from mbp".to_owned()));
        let refusal = check("tiny", &[1; 32], &[answer("mbp", gone)]).expect_err("one fails");
        assert_eq!(refusal.kind, RefusalKind::NotReachable);
    }
}
