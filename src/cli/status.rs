//! `daisy cluster status`: what this machine's node is doing.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, NodeStatus, RankStatus, Refusal, RefusalKind, ToNode};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::cluster::runtime;
use super::{Failure, render};
use crate::ipc::{self, Reader, Writer};

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Machine-readable; with --watch a line each time
    #[arg(long)]
    json: bool,
    /// Show it again each second until Ctrl+C
    #[arg(long)]
    watch: bool,
}

impl Status {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        runtime()?.block_on(async {
            loop {
                let status = ask(connect(home).await?).await?;
                if self.json {
                    render::json(&document(&status));
                } else {
                    render::status(&status, self.watch);
                }
                if !self.watch {
                    return Ok(());
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        })
    }
}

async fn ask(stream: UnixStream) -> Result<NodeStatus, Failure> {
    let (read, write) = stream.into_split();
    Writer::new(write).write(&ToNode::Status).await.context("cannot ask the node")?;
    match Reader::new(read).read().await.context("cannot hear the node")? {
        Some(FromNode::Status(status)) => Ok(status),
        other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
    }
}

fn document(status: &NodeStatus) -> Value {
    let rank = |rank: &RankStatus| {
        let RankStatus { planned, pid, resident_bytes, device } = rank;
        let layers = planned.shard.layers;
        json!({
            "rank": planned.rank.0,
            "node": planned.node_name,
            "node_id": planned.node.to_string(),
            "layers": {"start": layers.start, "end": layers.end},
            "weight_bytes": planned.weight_bytes,
            "resident_bytes": resident_bytes,
            "device": device,
            "pid": pid,
        })
    };
    json!({
        "id": status.id.to_string(),
        "name": status.name.to_string(),
        "version": status.build,
        "control_port": status.control_port,
        "serving": status.serving,
        "ranks": status.ranks.iter().map(rank).collect::<Vec<_>>(),
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

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
