//! `daisy cluster id` and `daisy cluster trust`: who this node is, and whom it works with.

use std::path::Path;

use clap::Args;
use daisy_proto::{NodeId, NodeName};

use super::{Failure, render};
use crate::identity::Identity;
use crate::node;

#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// What `daisy cluster id` prints on the other machine
    #[arg(value_name = "NODE_ID")]
    id: String,
    /// A name to remember it by
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
}

impl Trust {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let id: NodeId = self.id.parse().map_err(|error| Failure::usage(format!("{error}")))?;
        let own = Identity::load_or_create(home).map_err(anyhow::Error::from)?.node_id();
        if id == own {
            return Err(Failure::usage(format!(
                "{id} is this node's own id; run `daisy cluster trust {own}` on the other machine"
            )));
        }
        node::remember(home, id, self.name.as_ref()).map_err(anyhow::Error::from)?;
        render::trusted(&id, &own);
        Ok(())
    }
}

pub(crate) fn print_id(home: &Path) -> Result<(), Failure> {
    let identity = Identity::load_or_create(home).map_err(anyhow::Error::from)?;
    render::id(&identity.node_id());
    Ok(())
}
