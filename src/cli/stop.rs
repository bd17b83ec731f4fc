//! `daisy cluster stop`: ends what this machine's node serves; the node stays.

use std::path::Path;

use anyhow::Context;
use daisy_proto::local::{FromNode, ToNode};

use super::cluster::runtime;
use super::serve::GRACE_MS;
use super::{Failure, render, status};
use crate::ipc::{Reader, Writer};

pub(crate) fn run(home: &Path) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let (read, write) = status::connect(home).await?.into_split();
        let stop = ToNode::Stop { grace_ms: GRACE_MS };
        // Closing it would tell the node that nobody waits.
        let mut writer = Writer::new(write);
        writer.write(&stop).await.context("cannot ask the node")?;
        match Reader::new(read).read().await.context("cannot hear the node")? {
            Some(FromNode::Stopped) => render::stopped(),
            Some(FromNode::Refused(refusal)) => return Err(Failure::Refused(refusal)),
            other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
        }
        Ok(())
    })
}
