//! `daisy cluster status`: what this machine's node is doing.

use std::path::Path;

use anyhow::Context;
use daisy_proto::local::{FromNode, Refusal, RefusalKind, ToNode};
use tokio::net::UnixStream;

use super::cluster::runtime;
use super::{Failure, render};
use crate::ipc::{self, Reader, Writer};

pub(crate) fn run(home: &Path) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let (read, write) = connect(home).await?.into_split();
        Writer::new(write).write(&ToNode::Status).await.context("cannot ask the node")?;
        match Reader::new(read).read().await.context("cannot hear the node")? {
            Some(FromNode::Status(status)) => render::status(&status),
            other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
        }
        Ok(())
    })
}

/// The running node of this machine.
pub(crate) async fn connect(home: &Path) -> Result<UnixStream, Failure> {
    if let Ok(socket) = ipc::socket_path(home)
        && let Ok(stream) = UnixStream::connect(socket).await
    {
        return Ok(stream);
    }
    Err(Failure::Refused(Refusal {
        message: "no node runs on this machine".to_owned(),
        hints: vec!["start one with `daisy cluster up`".to_owned()],
        kind: RefusalKind::NotReachable,
    }))
}
