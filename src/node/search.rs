//! Begins the search for other nodes by multicast, where that makes sense.

use std::sync::Arc;

use daisy_proto::local::{Refusal, RefusalKind};
use daisy_proto::{NodeId, PROTOCOL_VERSION};

use super::{BUILD, NodeConfig, random_u64};
use crate::discovery::{Advert, Discovery, Wish};
use crate::net::ControlEndpoint;

/// Looks, and is seen. A node works without; then it says why nobody is found.
pub(super) fn start(
    config: &NodeConfig,
    id: NodeId,
    control: &ControlEndpoint,
    is_paired: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
) -> Result<Discovery, Refusal> {
    let listens = control.local_addr();
    if !config.discovery {
        return Err(off("discovery is off: nodes are found by --peer alone", &[]));
    }
    if listens.ip().is_loopback() {
        let message =
            format!("this node listens on {} alone: no other machine reaches it", listens.ip());
        return Err(off(&message, &["start it without --listen"]));
    }
    let boot = random_u64().map_err(|error| off(&error.to_string(), &[]))?;
    let own = Advert {
        id,
        name: config.name.clone(),
        build: BUILD.to_owned(),
        protocol: PROTOCOL_VERSION,
        port: listens.port(),
        boot,
    };
    let wish = Wish { own: Some(own), listen: listens.ip(), is_paired };
    Discovery::start(wish).map_err(|error| {
        tracing::warn!(%error, "discovery");
        off(&error.to_string(), &[])
    })
}

fn off(message: &str, hints: &[&str]) -> Refusal {
    let hints = hints.iter().map(|hint| (*hint).to_owned()).collect();
    Refusal { message: message.to_owned(), hints, kind: RefusalKind::CannotBeDone }
}
