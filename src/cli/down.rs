//! `daisy cluster down`: ends this machine's node, and `reset-identity`: makes its home a new node's.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use daisy_proto::local::{FromNode, Refusal, RefusalKind, ToNode};

use super::cluster::runtime;
use super::{Failure, render, status};
use crate::identity::Identity;
use crate::ipc::{Reader, Writer};

pub(crate) fn down(home: &Path) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let (read, write) = status::connect(home).await?.into_split();
        Writer::new(write).write(&ToNode::Down).await.context("cannot ask the node")?;
        match Reader::new(read).read().await.context("cannot hear the node")? {
            Some(FromNode::Stopping) => {}
            other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
        }
        let began = Instant::now();
        while runs(home) {
            if began.elapsed() > END_MAX {
                Err(anyhow::anyhow!(
                    "the node has not ended within {} s; `daisy cluster logs` says what it does",
                    END_MAX.as_secs()
                ))?;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        render::down();
        Ok(())
    })
}

pub(crate) fn reset_identity(home: &Path) -> Result<(), Failure> {
    if runs(home) {
        return Err(Failure::Refused(Refusal {
            message: "a node runs with this home".to_owned(),
            hints: vec!["end it first: `daisy cluster down`".to_owned()],
            kind: RefusalKind::CannotBeDone,
        }));
    }
    let identity = Identity::reset(home).map_err(anyhow::Error::from)?;
    render::reset(&identity.node_id());
    Ok(())
}

/// Whether a node holds the home's lock.
fn runs(home: &Path) -> bool {
    File::open(home.join("node.lock")).is_ok_and(|file| file.try_lock().is_err())
}

/// Ranks get 2 s, requests 5 s, peers half a second.
const END_MAX: Duration = Duration::from_secs(20);
